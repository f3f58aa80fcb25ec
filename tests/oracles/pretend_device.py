"""A device that is not there: tensors with real values in memory that behave as if they lay on an accelerator.

    with PretendDevice() as pretend:
        model.to(pretend.device)                # torch.device("meta"): a kind that torch knows and nobody trains on
        loss = model(images.to(pretend.device)).sum()  # real numbers: the operation was done on the CPU
        loss + torch.ones(3)                    # RuntimeError: on the CPU and on the device
        assert pretend.reads == []              # nobody has looked at a value, so nothing had to wait

A whole training: `with PretendDevice() as pretend, pretend_runtime(): train(recipe, folder, Runtime(), resume=False)`.

What is refused is what CUDA refuses: operations between the device and the CPU, but for numbers (0-dim tensors) of the
CPU in elementwise operations and for indices on the CPU. `PretendDevice(float64=False)` plays MPS, which has no
float64. Two lists tell what makes the host and CUDA wait for each other, each entry naming the line of ours that did:

- `reads`: a value comes to the host. `.item()`, `int()`, `bool()`, `.tolist()`, `.cpu()`, `torch.equal`, and whatever
  has a result as long as the values say: `nonzero`, `unique`, indexing by a mask.
- `uploads`: a value goes to the device. `torch.tensor([…], device=…)`, `.to(device)`, an index on the CPU.

Filling by a mask (`x[mask] = 0`) counts as a read too, which is stricter than CUDA: say `masked_fill_`.

Not shown: speed, kernels that an accelerator lacks or that round otherwise, streams, autocast (which is off), and
tensors made in other threads than the one that entered.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

PRETEND, CPU = torch.device("meta"), torch.device("cpu")
aten = torch.ops.aten

# Their results are numbers of the host, or as long as the values say.
READS = {
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten._unique,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
    aten._linalg_check_errors,
}
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}
FILLING = {aten.index_put, aten.index_put_, aten._index_put_impl_, aten.masked_fill, aten.masked_fill_, aten.fill_}


class PretendTensor(torch.Tensor):
    """A tensor of the pretend device. `held` are its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, real: torch.Tensor) -> PretendTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=PRETEND,
        )
        made.held = real
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # no rules of its own above those of dispatch

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {}, contextlib.nullcontext())

    # torch answers these itself for a tensor on `meta`, which has no values.
    is_meta = property(lambda self: False)

    def tolist(self):
        return self.detach().cpu().tolist()

    def item(self):
        return aten._local_scalar_dense(self.detach().reshape(()))

    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False):
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)

    def __getitem__(self, index):
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index, value):
        super().__setitem__(_without_lists(index), value)

    def numpy(self, *, force=False):
        if force:
            return self.detach().cpu().numpy()
        raise TypeError("can't convert a tensor of the pretend device to numpy. Use Tensor.cpu() first")

    def __array__(self, *_, **__):
        return self.numpy()

    def __dlpack__(self, *_, **__):
        return self.numpy()

    def __bool__(self):
        return bool(self.item())

    def __int__(self):
        return int(self.item())

    def __index__(self):
        return int(self.item())

    def __float__(self):
        return float(self.item())

    def __complex__(self):
        return complex(self.item())

    def __format__(self, spec):
        return format(self.item() if self.ndim == 0 else str(self), spec)

    def __contains__(self, element):
        return bool((self == element).any())

    def __reduce_ex__(self, protocol):
        return self.detach().cpu().__reduce_ex__(protocol)  # a file holds what map_location="cpu" will find

    def __repr__(self):
        return f"PretendTensor({self.held!r}, requires_grad={self.requires_grad})"


class PretendDevice(TorchDispatchMode):
    """The rules, in force inside `with PretendDevice() as pretend:`. `pretend.device` is where to move things.

    Args:
        float64: whether the device has it; MPS has not.

    Attributes:
        reads: one line for every value that went to the host.
        uploads: one line for every tensor that came from it.
    """

    current: PretendDevice | None = None

    def __init__(self, *, float64: bool = True) -> None:
        super().__init__()
        self.float64 = float64
        self.reads: list[str] = []
        self.uploads: list[str] = []

    device = PRETEND

    def __enter__(self):
        assert PretendDevice.current in (None, self), "there is only one pretend device"
        if PretendDevice.current is None:  # it is entered again while an operation is taken apart
            PretendDevice.current = self
            self._depth, self._stack = 0, contextlib.ExitStack()
            self._stack.enter_context(_patches())
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        self._depth -= 1
        if self._depth == 0:
            PretendDevice.current = None
            self._stack.close()

    def forget(self) -> None:
        """Starts to count again."""
        self.reads.clear()
        self.uploads.clear()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {}, self)


def pretend(values: Any) -> Any:
    """The tensors among `values`, moved to the device without being counted."""
    return tree_map_only(torch.Tensor, lambda x: x if isinstance(x, PretendTensor) else _wrap(x.detach()), values)


def real(values: Any) -> Any:
    """The tensors among `values`, as a test sees them: on the CPU, not counted."""
    return tree_map_only(PretendTensor, lambda x: x.held.clone(), values)


def _run(func, args, kwargs, mode):
    packet, tensors = func.overloadpacket, [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    own = [x for x in tensors if isinstance(x, PretendTensor)]
    asked = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    if not own and asked != PRETEND:
        return func(*args, **kwargs)
    if packet not in READS and func._can_decompose():  # without autograd, operations arrive before they are taken apart
        with mode:
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
    if packet is aten._to_copy:
        return _move(args[0], kwargs, asked)
    if packet is aten.copy_:
        return _copy(*args, **kwargs)
    if own:
        _check(func, packet, args, tensors, own)
    before = {id(x.held): x for x in own}
    if asked is not None:
        kwargs = {**kwargs, "device": CPU}
    outer = args, kwargs
    args, kwargs = tree_map_only(PretendTensor, lambda x: x.held, outer)
    made = func(*args, **kwargs)
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():
            func(*outer[0], **outer[1])  # the tensor itself also gets its new shape
    if asked == CPU:
        return made  # such as zeros_like(x, device="cpu")
    _check_shapes(func, before)
    # A view of an ordinary tensor is ordinary too, also where everything new is an inference tensor.
    ordinary = func.is_view and not own[0].is_inference()
    with torch.inference_mode(False) if ordinary else contextlib.nullcontext():
        return tree_map_only(torch.Tensor, lambda x: before[id(x)] if id(x) in before else _wrap(x), made)


def _without_lists(index):
    """A list as the tensor it stands for; torch would make it on `meta`, without values."""
    if isinstance(index, tuple):
        return tuple(map(_without_lists, index))
    return torch.tensor(index) if isinstance(index, (list, np.ndarray)) else index


def _wrap(values: torch.Tensor) -> PretendTensor:
    now = PretendDevice.current
    if now is not None and not now.float64 and values.dtype in (torch.float64, torch.complex128):
        raise TypeError("the pretend device has no float64, like MPS; use float32 there")
    return PretendTensor(values)


def _move(values, kwargs, asked):
    on_device = isinstance(values, PretendTensor)
    there = asked or values.device
    if on_device and there == CPU:
        _note("reads", "_to_copy")
    elif not on_device:
        _note("uploads", "_to_copy")
    made = aten._to_copy(values.held if on_device else values, **{**kwargs, "device": CPU})
    return made if there == CPU else _wrap(made)


def _copy(to, values, non_blocking=False):
    if isinstance(to, PretendTensor) != isinstance(values, PretendTensor):
        _note("uploads" if isinstance(to, PretendTensor) else "reads", "copy_")
    inner = (x.held if isinstance(x, PretendTensor) else x for x in (to, values))
    aten.copy_(*inner)
    return to


def _check(func, packet, args, tensors, own) -> None:
    """Refuses what CUDA refuses; notes what makes it wait."""
    strangers = [x for x in tensors if not isinstance(x, PretendTensor)]
    if packet in INDEXING:
        indices = [x for x in args[1] if x is not None]
        masks = any(x.dtype in (torch.bool, torch.uint8) for x in indices)
        if isinstance(args[0], PretendTensor):
            for _ in (x for x in indices if not isinstance(x, PretendTensor)):
                _note("uploads", f"{packet} by an index on the CPU")
            strangers = [x for x in strangers if all(x is not index for index in indices)]
        if masks:
            _note("reads", f"{packet} by a mask")
    elementwise = torch.Tag.pointwise in func.tags or str(packet).startswith("aten._foreach")
    if elementwise or packet in FILLING:
        strangers = [x for x in strangers if x.ndim]
    if strangers:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found the CPU and the pretend device in {func}: "
            f"{[tuple(x.shape) for x in strangers]} on the CPU, {[tuple(x.shape) for x in own]} on the device"
        )
    if packet in READS or (packet is aten.repeat_interleave and func._schema.arguments[0].name == "repeats"):
        _note("reads", str(packet))


def _check_shapes(func, before) -> None:
    for tensor in before.values():
        if tensor.held.shape != tensor.shape or tensor.held.stride() != tensor.stride():
            raise NotImplementedError(f"{func} changes a shape in place, which the pretend device cannot follow")


def _note(kind: str, what: str) -> None:
    now = PretendDevice.current
    if now is not None:
        getattr(now, kind).append(f"{what.removeprefix('aten.')} at {_where()}")


def _where() -> str:
    """The innermost line that is neither torch's nor of this file."""
    frame, torch_folder = sys._getframe(1), str(Path(torch.__file__).parent)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith((torch_folder, "<")) and Path(name).name != "contextlib.py":
            return f"{Path(name).name}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return "nowhere"


@contextlib.contextmanager
def _patches():
    """What torch does differently for `meta` before any operation is dispatched."""
    tensor, as_tensor, autocast, apply = torch.tensor, torch.as_tensor, torch.autocast, torch.nn.Module._apply

    def goes_there(device):
        return device is not None and torch.device(device) == PRETEND

    def pretend_tensor(data, *, dtype=None, device=None, requires_grad=False, **options):
        if isinstance(data, PretendTensor):
            data = data.item() if data.ndim == 0 else data.tolist()
        if not goes_there(device):
            return tensor(data, dtype=dtype, device=device, requires_grad=requires_grad, **options)
        return tensor(data, dtype=dtype).to(PRETEND).requires_grad_(requires_grad)

    def pretend_as_tensor(data, dtype=None, device=None):
        if isinstance(data, PretendTensor):
            return data.to(device or data.device, dtype or data.dtype)
        if not goes_there(device):
            return as_tensor(data, dtype=dtype, device=device)
        return as_tensor(data, dtype=dtype).to(PRETEND)

    class PretendAutocast(autocast):
        def __init__(self, device_type, dtype=None, enabled=True, cache_enabled=None):
            kind = "cpu" if device_type == PRETEND.type else device_type
            super().__init__(kind, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def pretend_apply(module, fn, recurse=True):
        # On a real device `.to` changes a parameter in place, and an optimizer that has it goes on having it. Here
        # the object takes the other's place.
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(module, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    torch.tensor, torch.as_tensor, torch.autocast = pretend_tensor, pretend_as_tensor, PretendAutocast
    torch.nn.Module._apply = pretend_apply
    try:
        yield
    finally:
        torch.tensor, torch.as_tensor, torch.autocast = tensor, as_tensor, autocast
        torch.nn.Module._apply = apply


@contextlib.contextmanager
def pretend_runtime():
    """Lets all of rince run on the device: every `Runtime` made inside, whatever accelerator it is asked for, and what
    evaluation opens, but where it asks for the CPU."""
    from rince.evaluation import trained  # noqa: PLC0415 - both bring much
    from rince.train.runtime import Runtime  # noqa: PLC0415

    original, best = Runtime.__init__, trained.best_device

    def start(self, devices=1, precision="32-true", accelerator="auto", *args, **options):
        original(self, devices, precision, "cpu", *args, **options)
        self.fabric.strategy._root_device = PRETEND  # what Fabric's own `.device`, `.setup` and `.to_device` go by
        self.fabric.accelerator.setup_device = lambda device: None  # would want a CPU

    Runtime.__init__ = start
    trained.best_device = lambda accelerator="auto": CPU if accelerator == "cpu" else PRETEND
    try:
        yield
    finally:
        Runtime.__init__, trained.best_device = original, best
