import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torchvision import datasets, models, transforms

hvd.init()
torch.cuda.set_device(hvd.local_rank())
dataset = datasets.CIFAR10("data", transform=transforms.ToTensor())
sampler = hvd.elastic.ElasticSampler(dataset)
loader = torch.utils.data.DataLoader(dataset, batch_size=64, sampler=sampler)
model = models.resnet18().cuda()
base_lr = 0.01
optimizer = torch.optim.SGD(model.parameters(), lr=base_lr * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, 20):
        state.sampler.set_epoch(state.epoch)
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
            state.sampler.record_batch(i, 64)
            if i % 50 == 0:
                state.commit()
        if hvd.rank() == 0:
            torch.save(model.state_dict(), "m.pt")


def on_reset():
    for g in optimizer.param_groups:
        g["lr"] = base_lr * hvd.size()


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)
state.register_reset_callbacks([on_reset])
train(state)
