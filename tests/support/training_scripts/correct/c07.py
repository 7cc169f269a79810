import lightning as L
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST
from torchvision.transforms import ToTensor


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(784, 10)

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layer(x.flatten(1)), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = L.Trainer(accelerator="gpu", devices=8, num_nodes=2, strategy="ddp", max_epochs=3)
trainer.fit(Model(), DataLoader(MNIST(".", transform=ToTensor()), batch_size=64, shuffle=True))
trainer.save_checkpoint("last.ckpt")
