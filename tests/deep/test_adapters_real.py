"""Real networks of timm, torchvision and transformers, if these can be imported."""

from typing import Any

import pytest
import torch

from kalstream.deep import KalmanHead, OnlineLearner
from kalstream.deep.adapters import from_timm, from_torchvision, from_transformers
from kalstream.deep.backbones import mobilenet_v2, resnet18, resnet50


def library(name: str) -> Any:
    """Import a module, or skip the test; with some builds of torch the import fails."""
    try:
        return __import__(name)
    except Exception as error:
        return pytest.skip(f"{name}: {error}")


def learns(backbone: Any, rows: Any) -> None:
    """Run one step of fine-tuning."""
    learner = OnlineLearner(backbone, KalmanHead(backbone.n_features, 3), lr=1e-3)
    before = [each.clone() for each in backbone.parameters() if each.requires_grad]
    for _ in range(2):
        learner.step(rows, torch.arange(len(rows)) % 3)
    after = [each for each in backbone.parameters() if each.requires_grad]
    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "convnext_atto"]
)
def test_timm(name: str) -> None:
    library("timm")
    backbone = from_timm(name, pretrained=False)
    assert len(backbone.mean) == len(backbone.std) == 3
    learns(backbone, torch.randn(4, 3, 224, 224))


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "densenet121"]
)
def test_torchvision(name: str) -> None:
    library("torchvision")
    learns(from_torchvision(name), torch.randn(4, 3, 96, 96))


@pytest.mark.parametrize("ours", [resnet18, resnet50, mobilenet_v2])
def test_our_networks_equal_those_of_torchvision(ours: Any) -> None:
    torchvision = library("torchvision")
    torch.manual_seed(0)
    theirs = torchvision.models.get_model(ours.__name__, weights=None).eval()
    mine = ours().eval()
    state = {k: v for k, v in theirs.state_dict().items() if k in mine.state_dict()}
    mine.load_state_dict(state)
    rows = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(mine(rows), from_torchvision(theirs).eval()(rows))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_transformers(pooling: str) -> None:
    transformers = library("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    learns(from_transformers(transformers.ViTModel(config), pooling), torch.randn(3, 3, 224, 224))
