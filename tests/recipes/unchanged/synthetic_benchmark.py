"""A synthetic benchmark as Horovod's users write it (after its pytorch_synthetic_benchmark.py): small enough for CPUs.

Imports nothing of this project, reads no variable of it, and leaves no record. ``--model`` takes a name in the
``MODELS`` of a models.py that lies beside it, if there is one.
"""

import argparse
import timeit

import horovod.torch as hvd
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="perceptron")
parser.add_argument("--image-size", type=int, default=32)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--momentum", type=float, default=0.0)
parser.add_argument("--num-warmup-batches", type=int, default=0)
parser.add_argument("--num-batches-per-iter", type=int, default=2)
parser.add_argument("--num-iters", type=int, default=10)
args = parser.parse_args()

hvd.init()
torch.manual_seed(1234 + hvd.rank())
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if args.model == "perceptron":
    layers = torch.nn.Flatten(), torch.nn.Linear(3 * args.image_size**2, 64), torch.nn.Linear(64, 10)
    model = torch.nn.Sequential(*layers).to(device)
else:
    from models import MODELS

    model = MODELS[args.model]().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=args.momentum)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

data = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
target = torch.randint(10, (args.batch_size,), device=device)


def step():
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


log(f"Number of ranks: {hvd.size()}, of this node: {hvd.local_size()}")
timeit.timeit(step, number=args.num_warmup_batches)
total = 0.0
for number in range(args.num_iters):
    seconds = timeit.timeit(step, number=args.num_batches_per_iter)
    total += seconds
    log(f"Iter #{number}: {args.num_batches_per_iter * args.batch_size / seconds:.1f} img/sec per rank")
log(f"All: {args.num_iters * args.num_batches_per_iter} batches in {total:.6f} s")

weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everyones = hvd.allgather(weights.sum().reshape(1))
log(f"Same weights everywhere: {bool((everyones == everyones[0]).all())}")
