"""The formulas of docs/scaling.md, counted: bytes of bank and ranks, and what two processes send each other."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import rince

FLOAT, LABEL, RANK = 4, 8, 1
SIZES = [(4, 8), (6, 16), (10, 4)]  # samples of a process, and width
VIEWS, PROCESSES = 2, 2


def size_of(*tensors):
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(("bank", "dim"), [(16, 4), (64, 8), (100, 16)])
def test_bytes_of_a_bank_and_its_ranks(bank, dim):
    kept = rince.MemoryBank(bank, dim)
    assert size_of(kept.keys, kept.labels) == bank * (FLOAT * dim + LABEL)
    ranks = rince.TableRanks.from_superclasses([0, 0, 1])(torch.zeros(5, dtype=torch.long), torch.zeros(bank).long())
    assert size_of(ranks) == RANK * 5 * bank


@pytest.mark.parametrize(("batch", "bank", "dim"), [(4, 16, 4), (8, 64, 8), (16, 100, 4)])
def test_products_with_a_bank(batch, bank, dim):
    """Two, one of them for the gradient, for any number of ranks."""
    source = rince.TableRanks.from_superclasses([0, 0, 1, 1])
    ranks = source(torch.arange(batch) % 4, torch.arange(bank) % 4)
    queries, keys = (
        F.normalize(torch.randn(batch, dim), dim=1).requires_grad_(),
        F.normalize(torch.randn(bank, dim), dim=1),
    )
    for temperatures in ((0.1, 0.2), (0.1, 0.2, 0.3)):
        with FlopCounterMode(display=False) as counted:
            rince.RankedInfoNCE.in_(temperatures).from_embeddings(queries, keys, ranks).total.backward()
        assert counted.get_total_flops() == 2 * 2 * batch * bank * dim


@pytest.mark.parametrize(("samples", "dim"), SIZES)
def test_bytes_of_a_batch_against_itself(samples, dim):
    views = [F.normalize(torch.randn(samples, dim), dim=1) for _ in range(VIEWS)]
    batch = rince.in_batch(views, torch.arange(samples) % 3)
    assert size_of(batch.candidates) == FLOAT * VIEWS * samples * dim
    assert size_of(batch.ranks) == RANK * (VIEWS * samples) ** 2


def work(process, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=process, world_size=PROCESSES)
    sent = {"gathered": 0, "reduced": 0}
    gather, reduce = dist.all_gather, dist.all_reduce

    def counted_gather(parts, mine):
        sent["gathered"] += mine.nbytes if mine.is_floating_point() else 0
        gather(parts, mine)

    def counted_reduce(values):
        sent["reduced"] += values.nbytes if values.ndim > 1 else 0
        reduce(values)

    dist.all_gather, dist.all_reduce = counted_gather, counted_reduce
    found = []
    for samples, dim in SIZES:
        sent.update(gathered=0, reduced=0)
        views = [torch.randn(samples, dim, requires_grad=True) for _ in range(VIEWS)]
        unit = [F.normalize(view, dim=1) for view in views]
        batch = rince.in_batch(unit, torch.arange(samples) % 3, gather=True)
        batch.loss(rince.RankedInfoNCE.in_([0.1])).total.backward()
        found.append((sent["gathered"], sent["reduced"], size_of(batch.ranks)))
    torch.save(found, folder / f"{process}.pt")
    dist.destroy_process_group()


def test_what_two_processes_send_each_other(tmp_path):
    mp.start_processes(work, (tmp_path,), nprocs=PROCESSES, start_method="spawn")
    for process in range(PROCESSES):
        found = torch.load(tmp_path / f"{process}.pt", weights_only=True)
        for (samples, dim), (gathered, reduced, ranks) in zip(SIZES, found, strict=True):
            assert gathered == FLOAT * VIEWS * samples * dim
            assert reduced == FLOAT * VIEWS * PROCESSES * samples * dim
            assert ranks == RANK * (VIEWS * samples) * (VIEWS * PROCESSES * samples)
