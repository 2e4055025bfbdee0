"""A model under the name that the tree uses: causal convolutions, with S4's interface."""

from torch import nn

from penstock.training.build import registries


@registries.models.register("sashimi")
class SmallSashimi(nn.Module):
    def __init__(self, d_model, n_layers, pool=(), layer=None, dropout=0.0, **_):
        super().__init__()
        self.d_model = self.d_output = d_model
        self.layers = nn.ModuleList(nn.Conv1d(d_model, d_model, 2) for _ in range(n_layers))
        for conv in self.layers:
            conv.bias._optim = {"lr": layer["lr"], "weight_decay": layer["wd"]}

    def forward(self, x, *args, state=None, **kwargs):
        x = x.transpose(1, 2)
        for conv in self.layers:
            x = x + nn.functional.gelu(conv(nn.functional.pad(x, (1, 0))))
        return x.transpose(1, 2), state
