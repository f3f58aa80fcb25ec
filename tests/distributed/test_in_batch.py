"""Two gloo processes that share a batch have the loss and the gradient of one that has it whole."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import rince

DIM = 5
TREE = rince.TableRanks.from_tree(["a/x/1", "a/x/2", "a/y/3", "b/z/4"])
LOSSES = {
    "mean": rince.RankedInfoNCE.out_in((0.1, 0.2, 0.3)),
    "pooled": rince.RankedInfoNCE.out((0.1, 0.2, 0.3), over_positives="pooled"),
}
# Labels of the samples of either process.
SHARES = {
    "unequal batches": ([0, 1, 2, 0, 3], [1, 2]),
    "queries of a rank on one process only": ([0, 0, 1, 1], [3, 3, 3, 3]),
    "one process has none": ([0, 1, 2, 0], []),
    "a term is empty everywhere": ([0, 0, 2], [0, 2, 3]),
}


def encoder():
    """The same on every process."""
    torch.manual_seed(0)
    return torch.nn.Linear(4, DIM)


def samples(shares):
    """Two views and the labels of the samples of every process."""
    torch.manual_seed(1)
    return [(torch.randn(2, len(labels), 4), torch.tensor(labels, dtype=torch.long)) for labels in shares]


def batch_loss(kind, network, views, labels, loss, **options):
    embeddings = [F.normalize(network(view), dim=1) for view in views]
    if kind == "towers":
        return rince.two_towers(*embeddings, labels, TREE, **options).loss(loss)
    return rince.in_batch(embeddings, labels, TREE, **options).loss(loss)


def cases():
    return [(kind, name, loss) for kind in ("views", "towers") for name in SHARES for loss in LOSSES]


def work(process, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=process, world_size=2)
    found = {}
    for kind, name, loss in cases():
        network = torch.nn.parallel.DistributedDataParallel(encoder())
        views, labels = samples(SHARES[name])[process]
        output = batch_loss(kind, network, views, labels, LOSSES[loss], gather=True)
        output.total.backward()
        found[kind, name, loss] = told(output, network)
    found["views of a sample apart"] = apart(process)
    found |= {("cached", name): cached(process, SHARES[name]) for name in SHARES}
    found["head"] = learnable(process, SHARES["unequal batches"])
    found["refused"] = refused(process)
    found["own ranks"] = own_ranks_of_views_elsewhere(process)
    torch.save(found, folder / f"{process}.pt")
    del network  # freed after its group, it joins gloo's thread while that waits for Python's lock: hung once in twenty
    dist.destroy_process_group()


def told(output, network):
    gradients = [parameter.grad for parameter in network.parameters()]
    return [output.total.detach(), output.per_rank, output.queries_used, *gradients]


def apart(process):
    """The first view of all samples on one process, the second on the other."""
    network = torch.nn.parallel.DistributedDataParallel(encoder())
    ((views, labels),) = samples([[0, 1, 2, 0, 3]])
    embeddings = F.normalize(network(views[process]), dim=1)
    batch = rince.in_batch(embeddings, labels, TREE, ids=range(5), view_numbers=[process], gather=True)
    output = batch.loss(LOSSES["mean"])
    output.total.backward()
    return told(output, network)


def cached(process, shares):
    """In chunks of two, so that processes have unequal numbers of them, or none."""
    network = torch.nn.parallel.DistributedDataParallel(encoder())
    views, labels = samples(shares)[process]

    def loss_of(*embeddings):
        unit = [F.normalize(each, dim=1) for each in embeddings]
        return rince.in_batch(unit, labels, TREE, gather=True).loss(LOSSES["mean"])

    return told(rince.CachedLoss(network, chunk=2)(list(views), loss_of), network)


def head():
    torch.manual_seed(2)
    return torch.nn.Linear(DIM, DIM)


def learnable(process, shares):
    """A loss with weights of its own, which are synchronised as those of any module are."""
    parallel = torch.nn.parallel.DistributedDataParallel
    network, own = parallel(encoder()), parallel(head())
    views, labels = samples(shares)[process]

    def loss_of(*embeddings):
        unit = [F.normalize(each, dim=1) for each in own(torch.stack(embeddings))]
        return rince.in_batch(unit, labels, TREE, gather=True).loss(LOSSES["mean"])

    return told(rince.CachedLoss(network, chunk=2)(list(views), loss_of), torch.nn.ModuleList([network, own]))


def refused(process):
    """What every process says of what does not fit that of the other."""
    some = torch.ones(2, 3)
    return [
        error_of(torch.ones(2, 3 + process)),
        error_of(some.double() if process else some),
        error_of(some, [0, 1] if process else None),
        error_of(some, ids=None if process else [0, 1]),
        error_of(some if process else some[:0], [0, 1] if process else None),
        error_of(some[:0]),
    ]


def error_of(*given, **options):
    try:
        rince.in_batch(*given, gather=True, **options).loss(rince.RankedInfoNCE.in_([0.1]), normalize=True)
    except rince.RinceError as error:
        return str(error)
    return None


def own_ranks_of_views_elsewhere(process):
    """Of a view that the other process brings there is none; both have to say so, or one would wait."""
    try:
        rince.in_batch(torch.ones(2, 3), view_numbers=[process], own_ranks=[[1]], gather=True)
    except rince.ShapeError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.start_processes(work, (folder,), nprocs=2, start_method="spawn")  # a fork may inherit a lock that is held
    return [torch.load(folder / f"{process}.pt", weights_only=True) for process in (0, 1)]


def alone(kind, shares, loss):
    network = encoder()
    parts = samples(shares)
    views, labels = torch.cat([views for views, _ in parts], dim=1), torch.cat([labels for _, labels in parts])
    output = batch_loss(kind, network, views, labels, loss)
    output.total.backward()
    return told(output, network)


def assert_both_are(expected, found):
    assert expected[-2].abs().max() > 0.01
    for process in found:
        for one, other in zip(expected, process, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "name", "loss"), cases())
def test_two_processes_have_the_loss_and_gradient_of_one(found, kind, name, loss):
    expected = alone(kind, SHARES[name], LOSSES[loss])
    assert (0 in expected[2].tolist()) == (
        name in ("a term is empty everywhere", "queries of a rank on one process only")
    )
    assert_both_are(expected, [process[kind, name, loss] for process in found])


@pytest.mark.parametrize("name", SHARES)
def test_two_processes_with_chunks_have_the_gradient_of_one_batch(found, name):
    assert_both_are(alone("views", SHARES[name], LOSSES["mean"]), [process["cached", name] for process in found])


def test_weights_of_the_loss_have_the_gradient_of_one_batch(found):
    whole = torch.nn.Sequential(encoder(), head())
    parts = samples(SHARES["unequal batches"])
    views, labels = torch.cat([views for views, _ in parts], dim=1), torch.cat([labels for _, labels in parts])
    output = batch_loss("views", whole, views, labels, LOSSES["mean"])
    output.total.backward()
    assert_both_are(told(output, whole), [process["head"] for process in found])


def test_two_views_of_a_sample_on_two_processes(found):
    expected = alone("views", [[0, 1, 2, 0, 3]], LOSSES["mean"])
    assert_both_are(expected, [process["views of a sample apart"] for process in found])


def test_processes_that_do_not_fit_say_so(found):
    assert found[0]["refused"] == found[1]["refused"]
    assert found[0]["refused"] == [
        "all processes must bring as many views of one width; got (samples, views, dim) = (2, 1, 3), (2, 1, 4)",
        "all processes must bring embeddings of one dtype; theirs have 4, 8 bytes",
        "all processes must give labels, or none; without are those of number [0]",
        "all processes must give ids, or none; without are those of number [1]",
        None,  # whoever has no samples need not give their labels
        None,
    ]
    assert [process["own ranks"] for process in found] == 2 * [
        "own_ranks has 1 views, and there is a view 1; they count from 0"
    ]
