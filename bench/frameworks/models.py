"""Models of common sizes, written out, so that nothing but PyTorch is needed."""

import torch
from torch import nn


def mlp(width=2000, depth=6):
    """24 million parameters (96 MB) in `depth` square layers."""
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class Residual(nn.Module):
    """The basic block of ResNet."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels),
                                  nn.ReLU(inplace=True), nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))
        self.way = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.way = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        return torch.relu(self.body(x) + self.way(x))


def resnet18(classes=1000):
    """ResNet-18: 11.7 million parameters in 62 tensors, 60 buffers."""
    blocks, channels_in = [], 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Residual(channels_in, channels, stride), Residual(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Bert(nn.Module):
    """The encoder of BERT-base: 109 million parameters in 150 tensors or so, with word and position embeddings and a pooled output."""

    def __init__(self, layers=12, width=768, words=30522, positions=512, classes=2):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, 'gelu', batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pool, self.classes = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, indices):
        x = self.norm(self.words(indices) + self.positions.weight[:indices.shape[1]])
        return self.classes(torch.tanh(self.pool(self.encoder(x)[:, 0])))
