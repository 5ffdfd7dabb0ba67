"""Models of common sizes, written out, so that nothing but PyTorch is needed."""

import torch
from torch import nn


def mlp(width=2000, depth=6):
    """24 million parameters (96 MB) in `depth` square layers."""
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def convolution(channels_in, channels, size, stride=1):
    return nn.Sequential(nn.Conv2d(channels_in, channels, size, stride, size // 2, bias=False), nn.BatchNorm2d(channels))


class Residual(nn.Module):
    """A block of ResNet: 3x3 convolutions, or (`deep`) a 3x3 between two 1x1, the last of which has four times the channels."""

    def __init__(self, channels_in, channels, stride, deep):
        super().__init__()
        channels_out = 4 * channels if deep else channels
        sizes = ((1, channels, 1), (3, channels, stride), (1, channels_out, 1)) if deep else ((3, channels, stride), (3, channels, 1))
        self.body, into = nn.Sequential(), channels_in
        for size, out_of, step in sizes:
            self.body += nn.Sequential(convolution(into, out_of, size, step), nn.ReLU(inplace=True))
            into = out_of
        del self.body[-1]  # behind the sum there is one
        self.way = nn.Identity() if stride == 1 and channels_in == channels_out else convolution(channels_in, channels_out, 1, stride)

    def forward(self, x):
        return torch.relu(self.body(x) + self.way(x))


def resnet(depths, deep, classes=1000):
    blocks, channels_in = [], 64
    for channels, depth in zip((64, 128, 256, 512), depths):
        for number in range(depth):
            blocks.append(Residual(channels_in, channels, 2 if number == 0 and channels > 64 else 1, deep))
            channels_in = 4 * channels if deep else channels
    return nn.Sequential(convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(channels_in, classes))


def resnet18():
    """11.7 million parameters in 62 tensors, 60 buffers."""
    return resnet((2, 2, 2, 2), deep=False)


def resnet50():
    """25.6 million parameters in 161 tensors, 159 buffers."""
    return resnet((3, 4, 6, 3), deep=True)


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
