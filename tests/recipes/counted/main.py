"""Ordinary training scripts, each trained with the meter and without: ``main.py [NAME ...]``.

Prints a line of JSON for each: whether the meter changed what was trained, and its count of samples beside the script's
own. Each training is a process of its own, forked after torch is imported.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import importlib
import io
import itertools
import json
import os
import resource
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.utils as dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

BATCH, STEPS, WIDTH = 16, 30, 12
ROOT = "/tmp"
NO_GRAPHS = ("aot_autograd", "frames")  # of what torch counts in compiling: frames that hold no graph, too
Script = Iterator[Any]  # first what is trained, by the names of runner_meter.start; then the samples of each step
SCRIPTS: dict[str, tuple[str, Callable[[], Script]]] = {}


def script(source: str) -> Callable[[Callable[[], Script]], Callable[[], Script]]:
    """``source``: what counts; of a hook with the stated batch, as ``hook 16``."""

    def add(train: Callable[[], Script]) -> Callable[[], Script]:
        SCRIPTS[train.__name__] = (source, train)
        return train

    return add


def net(outputs: int = 10, inputs: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, outputs))


class Net(nn.Module):
    """With a forward pass of its own, which torch.compile compiles; that of nn.Sequential it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, images: torch.Tensor) -> Any:
        return self.net(images)


def batch(size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, WIDTH), torch.randint(10, (size,))


def stated(model: Any, optimizer: Any, size: int = BATCH, **more: Any) -> dict[str, Any]:
    return {"model": model, "optimizer": optimizer, "batch_size": size, **more}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def ddp(model: nn.Module) -> nn.Module:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(model)


def of_one() -> Any:
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))


def divided(model: nn.Module) -> nn.Module:
    return fully_shard(model, mesh=of_one())


Sizes = Callable[[int], int]  # of batches, or the samples of steps, by their number


def usual(_number: int) -> int:
    return BATCH


def third_smaller(number: int) -> int:
    return 3 if number % 3 == 2 else BATCH


def ninth_smaller(number: int) -> int:
    return 5 if number % 9 == 8 else BATCH


def simple(model: Any, *, sizes: Sizes = usual, accumulate: int = 1, **more: Any) -> Script:
    """The usual loop: ``sizes`` of its batches by their number."""
    trained = more.pop("trained", model)
    optimizer = more.pop("optimizer", None) or sgd(trained)
    yield stated(model, optimizer, **more)
    number = 0
    for _ in range(STEPS):
        optimizer.zero_grad()
        taken = 0
        for _ in range(accumulate):
            (of_batch(model, sizes(number)) / accumulate).backward()
            taken, number = taken + sizes(number), number + 1
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        yield taken


def loop(model: Any, loss: Callable[[int], Any], *, samples: Sizes = usual, **more: Any) -> Script:
    """One backward pass a step: ``loss`` of a step by its number."""
    optimizer = more.pop("optimizer", None) or sgd(model)
    yield stated(model, optimizer, **more)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
        yield samples(step)


def of_batch(model: Callable[[torch.Tensor], Any], size: int = BATCH) -> torch.Tensor:
    """The loss of a batch."""
    images, labels = batch(size)
    return functional.cross_entropy(model(images), labels)


class Fields(dict[str, torch.Tensor]):
    """As a TensorDict without a batch size: it has a shape and a type whatever is in it."""

    shape, dtype = torch.Size([]), None


class OfFields(Net):
    def forward(self, images: Any) -> Any:
        return self.net(images["x"])


@script("hook 16")
def fields() -> Script:
    model = OfFields()

    def loss(step: int) -> torch.Tensor:
        return of_batch(lambda images: model(Fields(x=images)), third_smaller(step))

    return loop(model, loss, samples=third_smaller)


@script("hook 16")
def compiled_around() -> Script:
    """A function around the model is compiled, anew for the second shape, and not for what a meter does."""
    model = net()
    loss = torch.compile(lambda images, labels: functional.cross_entropy(model(images), labels), backend="eager")
    return loop(model, lambda step: loss(*batch(third_smaller(step))), samples=third_smaller)


@script(f"hook {BATCH}")
def accumulated_in_what_is_wrapped() -> Script:
    """The first pass of a step is of what DDP wraps, as it sends no gradients then."""
    model = ddp(inner := net())
    optimizer = sgd(model)
    yield stated(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for called in (inner, model):
            of_batch(called).backward()
        optimizer.step()
        yield 2 * BATCH


@script("hook")
def judged_before_each_step() -> Script:
    """By a further batch, whose pass builds a graph that no backward pass follows."""
    model = net()
    optimizer = sgd(model)
    yield stated(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        of_batch(model).backward()
        model(batch()[0]).argmax(1)
        optimizer.step()
        yield BATCH


@script("hook")
def judged_at_the_end() -> Script:
    """As above, before a last step that accumulates less than the others."""
    model = net()
    optimizer = sgd(model)
    yield stated(model, optimizer)
    for number in range(STEPS):
        is_last = number % 10 == 9
        optimizer.zero_grad()
        for _ in range(2 if is_last else 4):
            of_batch(model).backward()
        if is_last:
            model(batch()[0]).argmax(1)
        optimizer.step()
        yield (2 if is_last else 4) * BATCH


class WithLoss(Net):
    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # Net's takes images alone
        return functional.cross_entropy(self.net(images), labels)


@script("hook")
def with_loss() -> Script:
    return loop(model := WithLoss(), lambda _: model(*batch()))


@script(f"hook {BATCH}")
def unlabelled_without_loss() -> Script:
    """A network is in a module of its loss, and takes three times as many images without labels by itself."""
    model = WithLoss()

    def loss(_step: int) -> Any:
        return model(*batch()) + model.net(batch(3 * BATCH)[0]).softmax(1).pow(2).mean()

    return loop(model, loss, samples=lambda _: 4 * BATCH)


@script("script")
def encoders_by_turns() -> Script:
    """Pairs for two encoders, and in each second step half as many of each alone: what the first is given is a part."""
    first, second = net(8), net(8)

    def loss(step: int) -> torch.Tensor:
        size = BATCH if step % 2 == 0 else BATCH // 2
        one, other = first(torch.randn(size, WIDTH)), second(torch.randn(size, WIDTH))
        made: torch.Tensor = one + other if step % 2 == 0 else torch.cat([one, other])
        return made.square().mean()

    return loop(first, loss, optimizer=torch.optim.AdamW([*first.parameters(), *second.parameters()]))


@script("script")
def by_a_part_or_frozen() -> Script:
    """Of three steps one has a pass that is seen: others are of a part of the model, or of the model in eval()."""
    model: Any = net()
    called = itertools.cycle((model.train, lambda: model[::3], model.eval))

    def forward(images: torch.Tensor) -> Any:
        return next(called)()(images)

    yield from ({**each, "model": model} if isinstance(each, dict) else each for each in simple(forward, trained=model))


@script("script")
def output_is_a_parameter() -> Script:
    """Its first output is a table that it holds: a hook of that would stay for ever."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.users = nn.Embedding(50, 8), nn.Embedding(40, 8)

        def forward(self, users: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.items.weight, self.users(users)

    model = Tables()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    yield stated(model, optimizer)
    for _ in range(STEPS):
        items, users = model(torch.randint(40, (BATCH,)))
        optimizer.zero_grad()
        ((users @ items.T).square().mean()).backward()
        optimizer.step()
        assert len(model.items.weight._backward_hooks or ()) <= 1
        yield BATCH


@script(f"hook {BATCH}")
def experts_in_a_list() -> Script:
    """What the first of four experts is given is a share of the batch."""
    experts, gate = [net() for _ in range(4)], nn.Linear(WIDTH, 4)

    def mixed(images: torch.Tensor) -> torch.Tensor:
        weights = gate(images).softmax(1)
        output = torch.zeros(BATCH, 10)
        for number, expert in enumerate(experts):
            mine = weights.argmax(1) == number
            output[mine] = expert(images[mine]) * weights[mine, number : number + 1]
        return output

    optimizer = torch.optim.Adam([each for one in (*experts, gate) for each in one.parameters()])
    return loop(experts[0], lambda _: of_batch(mixed), optimizer=optimizer)


def gradients_of_each_sample() -> Script:
    """By vmap, which hides the dimension of the batch: a sample has 12 numbers."""
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = sgd(model)

    def loss(parameters: Any, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(torch.func.functional_call(model, parameters, (image,)), label)

    of_each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    yield stated(model, optimizer)
    for _ in range(STEPS):
        for name, found in of_each(dict(model.named_parameters()), *batch()).items():
            model.get_parameter(name).grad = found.detach().mean(0)
        optimizer.step()
        yield BATCH


@script("script")
def beside_weights_of_a_byte() -> Script:
    """Frozen and of eight bits, of which torch does not say whether they are finite."""
    model = net()
    model.register_parameter("scales", nn.Parameter(torch.ones(4).to(torch.float8_e4m3fn), requires_grad=False))
    return simple(model)


@script("hook")
def by_turns() -> Script:
    """Two optimizers of one model: the steps of one of them count."""
    model = net()
    optimizers = sgd(model[0]), sgd(model[3])  # type: ignore[index]
    yield stated(model, optimizers[0])
    for number in range(2 * STEPS):
        model.zero_grad()
        of_batch(model).backward()
        optimizers[number % 2].step()
        yield BATCH


@script("hook")
def accumulated_in_a_closure() -> Script:
    """The last pass lies in the optimizer's step, as Lightning has it."""
    model = net()
    optimizer = sgd(model)
    yield stated(model, optimizer)

    def passed() -> torch.Tensor:
        loss = of_batch(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.zero_grad()
        passed()
        optimizer.step(passed)  # type: ignore[arg-type]
        yield 2 * BATCH


@script("hook")
def encoder_layer_with_a_mask() -> Script:
    """With a hook, torch would compute its evaluation in another way, and train on another target."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)

    def loss(_step: int) -> torch.Tensor:
        texts, mask = torch.randn(BATCH, 6, 16), torch.arange(6).expand(BATCH, 6) > 3
        layer.eval()
        with torch.no_grad():
            target = layer(texts, src_key_padding_mask=mask)
        layer.train()
        error: torch.Tensor = layer(texts, src_key_padding_mask=mask) - target
        return error[:, :4].square().mean()

    return loop(layer, loss, optimizer=torch.optim.SGD(layer.parameters(), 0.1))


@script("script")
def compiled_and_given_before() -> Script:
    """The meter is given what torch.compile wraps."""
    model = net()
    for step in simple(aot(model), trained=model):
        yield {**step, "model": model} if isinstance(step, dict) else step


@script("script")
def compiled_step() -> Script:
    """The whole step is compiled: nothing of ours may be in it."""
    model = net()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images), labels)

    return loop(model, lambda step: loss(*batch(BATCH if step != STEPS - 5 else 5)))


@script("script")
def compiled_whole() -> Script:
    """The backward pass and the optimizer's step, too: hooks that autograd calls in it are none of what is compiled."""
    model = Net()
    optimizer = sgd(model)

    @torch.compile(backend="aot_eager")
    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    yield stated(model, optimizer)
    for _ in range(STEPS):
        train(*batch())
        yield BATCH


def aot(model: nn.Module) -> Any:
    return torch.compile(model, backend="aot_eager")


def aot_within(model: nn.Module) -> Any:
    model.compile(backend="aot_eager")
    return model


def compiled_late(compiled: Callable[[nn.Module], Any]) -> Script:
    """Eager at first: a hook of the model is then within what is compiled."""
    model = late = Net()

    def called(images: torch.Tensor) -> Any:
        return late(images)

    for number, each in enumerate(simple(called, trained=model, size=64 * BATCH)):
        yield {**each, "model": model} if isinstance(each, dict) else each
        if number == 2:
            late = compiled(model)


@script("hook")
def compiled_backward() -> Script:
    torch._dynamo.config.compiled_autograd = True
    model = Net()
    optimizer = sgd(model)

    @torch.compile(backend="eager")
    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        functional.cross_entropy(model(images), labels).backward()

    yield stated(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        train(*batch())
        optimizer.step()
        yield BATCH


def with_compiled_optimizer() -> Script:
    model = net()
    optimizer = sgd(model)
    optimizer.step = torch.compile(optimizer.step, backend="aot_eager")  # type: ignore[method-assign]
    return simple(model, optimizer=optimizer)


@script("hook")
def mixed_precision() -> Script:
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0**8)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    yield stated(model, optimizer)
    for step in range(STEPS):
        images, labels = batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels) * (float("inf") if step % 7 == 3 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        yield BATCH


@script("hook")
def evaluates() -> Script:
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(4 * (WIDTH - 2), 10))
    average = torch.optim.swa_utils.AveragedModel(model)
    for steps, each in enumerate(loop(model, lambda _: of_batch(lambda images: model(images[:, None])))):
        if steps:
            average.update_parameters(model)
        if steps and steps % 5 == 0:
            model.eval()
            with torch.no_grad():
                model(torch.randn(100, 1, WIDTH))
            model.train()
        yield each


@script("hook")
def distilled() -> Script:
    teacher, model = net(), net()

    def loss(_step: int) -> torch.Tensor:
        images, _labels = batch()
        with torch.no_grad():
            wanted = teacher(images).softmax(1)
        return functional.kl_div(model(images).log_softmax(1), wanted)

    return loop(model, loss)


@script(f"hook {BATCH}")
def traced() -> Script:
    """A pass that torch.jit.trace makes is no one's training."""
    for step in simple(model := net()):
        yield step
        torch.jit.trace(model, batch()[0], check_trace=False)


@script("hook")
def of_another_device() -> Script:
    """Tensors are made on another device than the model's where none is named; a layer has no gradient of its own."""
    model, idle = net(), nn.Linear(2, 2)
    for each in idle.parameters():
        each.grad = torch.zeros_like(each)
    optimizer = torch.optim.SGD([*model.parameters(), *idle.parameters()], lr=0.01, foreach=False)
    batches = [batch() for _ in range(STEPS)]
    yield stated(model, optimizer)
    torch.set_default_device("meta")
    for images, labels in batches:
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        yield BATCH
    torch.set_default_device("cpu")


@script(f"hook {BATCH}")
def what_a_step_held_is_free() -> Script:
    model = net()
    optimizer = sgd(model)

    def step() -> Any:
        images, labels = batch()
        output = model(images)
        optimizer.zero_grad()
        functional.cross_entropy(output, labels).backward()
        optimizer.step()
        return weakref.ref(output)

    yield stated(model, optimizer)
    gc.disable()
    for _ in range(STEPS):
        assert step()() is None
        yield BATCH


@script("hook")
def what_was_trained_before_is_free() -> Script:
    """Trials that end before a window is over, each without a cycle that a collection must end."""

    def trial(steps: int) -> Script:
        model = Net()
        for _ in range(2):  # the second optimizer goes on
            yield from itertools.islice(simple(model), steps + 1)

    gc.disable()
    for trained in (trial(3), trial(2)):
        weight = weakref.ref(next(trained)["model"].net[0].weight)
        for _ in filter(lambda each: each == BATCH, trained):
            assert weight() is not None
        assert weight() is None
    yield from simple(Net())


def several_optimizers(made: Callable[[int], torch.optim.Optimizer], model: nn.Module) -> Script:
    """``made``: the optimizer of a step."""
    yield stated(model, made(0))
    for number in range(STEPS):
        optimizer = made(number)
        optimizer.zero_grad()
        of_batch(model).backward()
        optimizer.step()
        del optimizer
        yield BATCH


@script(f"hook {BATCH}")
def frozen_at_first() -> Script:
    model = net()
    head, whole = sgd(model[3]), sgd(model)  # type: ignore[index]
    return several_optimizers(lambda number: head if number < 3 else whole, model)


@script("hook")
def actor_and_critic() -> Script:
    """The actor's loss passes through the critic after its step, and leaves gradients in it."""
    critic, actor = net(1), net(WIDTH)
    of_critic, of_actor = sgd(critic), sgd(actor)
    yield stated(critic, of_critic)
    for _ in range(STEPS):
        images, _labels = batch()
        value = critic(images)
        of_critic.zero_grad()
        value.square().mean().backward()
        of_critic.step()
        of_actor.zero_grad()
        critic(actor(images)).mean().backward()
        of_actor.step()
        yield BATCH


@script("hook")
def parameters_replaced() -> Script:
    """Parameters are put in the places of those that the optimizer had, as where points are split or pruned."""
    model = net()
    yield stated(model, optimizer := sgd(model))
    for step in range(STEPS):
        if step == 1:
            with torch.no_grad():
                for place, layer in enumerate((model[0], model[3])):
                    layer.weight = nn.Parameter(layer.weight.clone())
                    optimizer.param_groups[0]["params"][2 * place] = layer.weight
                    layer.bias = nn.Parameter(layer.bias.clone())
                    optimizer.param_groups[0]["params"][2 * place + 1] = layer.bias
        optimizer.zero_grad()
        of_batch(model).backward()
        optimizer.step()
        yield BATCH


@script("hook")
def two_of_one_pass() -> Script:
    """Each zeroes its gradients after its own step."""
    model = nn.Sequential(net(WIDTH), net())
    optimizers = sgd(model[0]), sgd(model[1])
    yield stated(model, optimizers[1])
    for _ in range(STEPS):
        of_batch(model).backward()
        for optimizer in optimizers:
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.1)
            optimizer.step()
            optimizer.zero_grad()
        yield BATCH


@script("hook")
def tasks_by_turns() -> Script:
    """Two optimizers of the same parameters, a task each; the other task has a way of its own through the model."""
    model = Net()
    optimizers = sgd(model), sgd(model)
    yield stated(model, optimizers[0])
    for _ in range(STEPS):
        for optimizer, called in zip(optimizers, (model, model.net.forward), strict=True):
            optimizer.zero_grad()
            of_batch(called).backward()
            optimizer.step()
        yield BATCH


class Both(Net):
    """An actor's output, and a critic's."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = net(1, 10)

    def forward(self, images: torch.Tensor) -> Any:
        actor = self.net(images)
        return torch.distributions.Normal(actor, 1.0), self.critic(actor.detach())


@script("hook")
def actor_and_critic_of_one_pass() -> Script:
    """Each has a loss, a backward pass and an optimizer of its own."""
    model = Both()
    optimizers = sgd(model.net), sgd(model.critic)
    yield stated(model, optimizers[0])
    for _ in range(STEPS):
        actor, value = model(batch()[0])
        for optimizer, given in zip(optimizers, (actor.mean, value), strict=True):
            optimizer.zero_grad()
            given.square().mean().backward()
            optimizer.step()
        yield BATCH


def critic_of_one_module(*, reentrant: bool | None = None) -> Script:
    """The whole is called for the actor, whose steps count; the critic steps thrice for each, by other samples, or
    once, where activations of the actor are computed again.
    """
    model = nn.Sequential(net(WIDTH), net(1))
    of_actor, of_critic = sgd(model[0]), sgd(model[1])
    yield stated(model, of_actor)
    if reentrant is not None:
        forward = model[0].forward
        model[0].forward = lambda images: checkpoint(forward, images.requires_grad_(), use_reentrant=reentrant)
    for _ in range(STEPS):
        model.zero_grad()
        model(batch()[0]).mean().backward()
        of_actor.step()
        for _again in range(3 if reentrant is None else 1):
            model.zero_grad()
            model[1](batch()[0]).mean().backward()
            of_critic.step()
        yield BATCH


def recomputed_for_two(*, reentrant: bool) -> Script:
    """Two optimizers step after each pass, of which the activations are computed again."""
    model = Net()
    optimizers = sgd(model.net[0]), sgd(model.net[3])  # type: ignore[index]
    yield stated(model, optimizers[0])
    for _ in range(STEPS):
        model.zero_grad()
        of_batch(lambda images: checkpoint(model, images.requires_grad_(), use_reentrant=reentrant)).backward()
        for optimizer in optimizers:
            optimizer.step()
        yield BATCH


@script(f"hook {2 * BATCH}")
def shared_trunk() -> Script:
    """Two models have a batch each in a step, and a layer in common."""
    trunk = nn.Linear(WIDTH, WIDTH)
    models = nn.Sequential(trunk, net()), nn.Sequential(trunk, net())
    optimizer = torch.optim.SGD(dict.fromkeys([*models[0].parameters(), *models[1].parameters()]), lr=0.01)
    return loop(models[0], lambda _: sum(map(of_batch, models)), optimizer=optimizer, samples=lambda _: 2 * BATCH)


def gan(*, apart: bool) -> Script:
    """``apart``: the discriminator has a backward pass for each of its two batches."""
    critic, maker = net(1), net(WIDTH)
    of_critic, of_maker = torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())
    loss = functional.binary_cross_entropy_with_logits
    ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    yield stated(critic, of_critic)
    for _ in range(STEPS):
        of_critic.zero_grad()
        made = maker(torch.randn(BATCH, WIDTH))
        of_real = loss(critic(batch()[0]), ones)
        if apart:
            of_real.backward()
            loss(critic(made.detach()), zeros).backward()
        else:
            (of_real + loss(critic(made.detach()), zeros)).backward()
        of_critic.step()
        of_maker.zero_grad()
        loss(critic(made), ones).backward()
        of_maker.step()
        yield BATCH


def projected(model: nn.Module) -> Script:
    """The first pass is for an adversarial example; gradients are set to zero, and not to None."""
    optimizer = sgd(model)
    yield stated(model, optimizer)
    for _ in range(STEPS):
        images, labels = batch()
        (slope,) = torch.autograd.grad(functional.cross_entropy(model(images.requires_grad_()), labels), images)
        functional.cross_entropy(model((images + 0.1 * slope.sign()).detach()), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        yield BATCH


@script("hook")
def projected_by_deepspeed() -> Script:
    class DeepSpeedEngine(Net):
        def gradient_accumulation_steps(self) -> int:
            return 1

    return projected(DeepSpeedEngine())


@script("script")
def compiled_and_divided() -> Script:
    model = nn.Sequential(Net(), nn.ReLU(), net(inputs=10))
    model[0].compile(backend="aot_eager", fullgraph=True)
    return simple(divided(model))


@script("hook")
def accumulated_divided() -> Script:
    """Gradients stay whole, and are reduced in the last of four passes; the outermost module has none of its own."""
    model: Any = divided(nn.Sequential(fully_shard(net(), mesh=of_one())))
    model.register_forward_pre_hook(lambda *_: model.set_requires_gradient_sync(next(last)))
    last = itertools.cycle((False, False, False, True))
    return simple(model, accumulate=4)


class Grouped(Net):
    def parameters(self, lr: float) -> Any:  # type: ignore[override]
        return [{"params": [*self.net.parameters()], "lr": lr}]


@script(f"hook {BATCH}")
def awkward() -> Script:
    """Beside modules that are broken or odd, and after an optimizer that raised; TorchScript compiles the model."""
    warnings.simplefilter("error", UserWarning)
    others = object.__new__(nn.Module), Grouped()
    with contextlib.suppress(ZeroDivisionError):
        torch.optim.LBFGS(others[1].parameters(1.0)).step(lambda: 1 / 0)
    for place, step in enumerate(simple(model := net())):
        yield step
        if place % 5 == 2:
            torch.jit.script(model)
            torch.jit.script(copy.deepcopy(model))
            torch.save(model(batch()[0]), io.BytesIO())


@script(f"hook {BATCH}")
def wrapper_stays_in_evaluation() -> Script:
    inner = net()
    for number, each in enumerate(simple(model := ddp(inner))):
        yield each
        if number == 10:
            model.eval()
            inner.train()


def perturbed() -> Script:
    """Of each batch two backward passes, the second with other weights: their gradients add up."""
    model = net()
    optimizer = sgd(model)
    yield stated(model, optimizer)
    for _ in range(STEPS):
        images, labels = batch()
        optimizer.zero_grad()
        for change in (0.1, -0.1):
            functional.cross_entropy(model(images), labels).backward()
            model[0].weight.data.add_(change)  # type: ignore[index]
        optimizer.step()
        yield BATCH


class Average(nn.Module):
    """Holds the model beside its average, and is never called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online, self.average = model, copy.deepcopy(model).requires_grad_(requires_grad=False)


@script("hook")
def held_by_an_average() -> Script:
    average = Average(net())
    yield from simple(average.online)


@script("hook")
def sharpness_aware() -> Script:
    model = ddp(net())
    optimizer = sgd(model)
    yield stated(model, optimizer)
    for _ in range(STEPS):
        images, labels = batch()
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            moved = [
                0.05 * each.grad / (each.grad.norm() + 1e-9) for each in model.parameters() if each.grad is not None
            ]
            torch._foreach_add_(list(model.parameters()), moved)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moved)
        optimizer.step()
        yield BATCH


@script("hook")
def two_views() -> Script:
    model = net()

    def loss(_step: int) -> torch.Tensor:
        images, _labels = batch()
        apart: torch.Tensor = model(images) - model(images + 0.1 * torch.randn_like(images))
        return apart.square().mean()

    return loop(model, loss)


@script("hook")
def closure() -> Script:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    yield stated(model, optimizer)
    for _ in range(STEPS):
        images, labels = batch()

        def loss(images: torch.Tensor = images, labels: torch.Tensor = labels) -> torch.Tensor:
            optimizer.zero_grad()
            found = functional.cross_entropy(model(images), labels)
            found.backward()
            return found

        optimizer.step(loss)  # type: ignore[arg-type]
        yield BATCH


@script(f"hook {2 * BATCH}")
def accumulated_for_two_optimizers() -> Script:
    """One for the matrices, and another for the rest, as Muon's are."""
    model = net()
    parts = [[each for each in model.parameters() if (each.ndim > 1) is is_matrix] for is_matrix in (True, False)]
    first, second = (torch.optim.SGD(part, lr=0.01) for part in parts)
    yield stated(model, first)
    for _ in range(STEPS):
        for _ in range(2):
            images, labels = batch()
            functional.cross_entropy(model(images), labels).backward()
        for each in (first, second):
            each.step()
            each.zero_grad()
        yield 2 * BATCH


class Adjoint(torch.autograd.Function):
    """Solves an equation without a graph, and again, backward, with one, as torchdiffeq does."""

    @staticmethod
    def forward(context: Any, start: Any, field: Any, *parameters: Any) -> Any:
        context.field = field
        context.save_for_backward(start, *parameters)
        return start + 0.5 * field(start)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        start, *parameters = context.saved_tensors
        totals = [torch.zeros_like(each) for each in parameters]
        for _ in range(3):
            with torch.enable_grad():
                found = torch.autograd.grad(context.field(start.detach()), parameters, gradients[0])
            totals = [total + each for total, each in zip(totals, found, strict=True)]
        return None, None, *totals


@script("hook")
def solved_with_the_adjoint() -> Script:
    model = net(outputs=WIDTH)
    optimizer = sgd(model)
    yield stated(model, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        images, _ = batch()
        Adjoint.apply(images, model, *model.parameters()).square().mean().backward()
        optimizer.step()
        yield BATCH


def checkpointed(*, reentrant: bool) -> Script:
    model = net()

    def recomputed(images: torch.Tensor) -> Any:
        return checkpoint(model, images.requires_grad_(), use_reentrant=reentrant)

    return loop(model, lambda _: of_batch(recomputed))


@script("hook")
def recomputed_without_its_holder() -> Script:
    """Lightning's modules hold a network so; torch ends the repeated pass by an error. A step takes two passes."""
    holder = nn.ModuleDict({"net": net()})
    optimizer = sgd(holder)
    yield stated(holder, optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            of_batch(lambda images: checkpoint(holder["net"], images, use_reentrant=False)).backward()
        optimizer.step()
        yield 2 * BATCH


@script(f"hook {BATCH}")
def prompted() -> Script:
    """A prompt of as many places as the batch has samples is all that is trained; some batches are smaller."""
    model, prompt = net(), nn.Embedding(BATCH, WIDTH)
    model.requires_grad_(False)

    def loss(step: int) -> torch.Tensor:
        places = prompt(torch.arange(BATCH)).mean(0)
        return of_batch(lambda images: model(images + places), ninth_smaller(step))

    return loop(prompt, loss, samples=ninth_smaller)


@script("script")
def frozen_collector() -> Script:
    """What wraps the model is found before the first step's end, and not after."""
    model = net()
    training = simple(ddp(model), trained=model)
    yield next(training) | {"model": model}
    for taken in training:
        gc.freeze()
        yield taken


@script(f"hook {BATCH}")
def beside_another_process() -> Script:
    """As processes train that share a model (Hogwild): the other one has begun, and goes on."""
    (begun, begins), (over, ends) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(ends)
        for _ in simple(net()):
            os.write(begins, b"x")
        os.read(over, 1)
        os._exit(0)
    os.read(begun, 1)
    yield from simple(net())
    os.close(ends)


@script("hook")
def recomputed_in_part() -> Script:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, 32), nn.Linear(32, 10)

        def forward(self, images: Any) -> Any:
            return self.last(checkpoint(self.first, images.requires_grad_(), use_reentrant=True))

    return simple(Halves())


class Recurrent(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.words, self.cells = nn.Embedding(50, 8), nn.LSTM(8, 16, batch_first=batch_first)
        self.out = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> Any:
        return {"logits": self.out(self.cells(self.words(tokens))[0])}


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.out = nn.Embedding(50, 16), nn.GRUCell(16, 16), nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = [torch.zeros(tokens.shape[1], 16)]
        for each in self.words(tokens):
            states.append(self.cell(each, states[-1]))
        return self.out(torch.stack(states[1:]))


def text(*, time_major: bool, length: int = 7, **more: Any) -> Script:
    model = Recurrent(batch_first=not time_major)

    def loss(_step: int) -> torch.Tensor:
        tokens = torch.randint(50, (length, BATCH) if time_major else (BATCH, length))
        return functional.cross_entropy(model(tokens)["logits"].flatten(0, 1), tokens.flatten())

    return loop(model, loss, samples=lambda _: length * BATCH if more else BATCH, **more)


@script("script")
def time_as_long_as_the_batch() -> Script:
    """(time, batch) by cells, which do not say so, in as many steps of time as sequences; an epoch's last has fewer."""
    model = Cells()

    def loss(step: int) -> torch.Tensor:
        tokens = torch.randint(50, (BATCH if step % 5 else 3, BATCH))
        return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return loop(model, loss)


def as_long_as_stated(model: nn.Module, batches: list[int], *, ends: bool = False) -> Script:
    """(time, batch) in BATCH steps of time, which a user has stated."""

    def loss(step: int) -> torch.Tensor:
        tokens = torch.randint(50, (BATCH, batches[step]))
        return functional.cross_entropy(model(tokens).flatten(0, -2), tokens[-1] if ends else tokens.flatten())

    return loop(model, loss, samples=batches.__getitem__)


class Ends(Cells):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        by_time: torch.Tensor = super().forward(tokens)
        return by_time[-1]


class Places(Cells):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        state, out = torch.zeros(tokens.shape[1], 16), torch.zeros(*tokens.shape, 50)
        for at, each in enumerate(self.words(tokens)):
            state = self.cell(each, state)
            out[at] = self.out(state)
        return out


@script("hook")
def temperature_first() -> Script:
    """Of no module, though an optimizer's first parameter."""
    model, temperature = net(), nn.Parameter(torch.zeros(()))

    def loss(_step: int) -> torch.Tensor:
        return functional.cross_entropy(model(torch.randn(BATCH, WIDTH)) * temperature.exp(), torch.arange(BATCH) % 10)

    return loop(model, loss, optimizer=torch.optim.SGD([temperature, *model.parameters()], lr=0.01))


class OfMapping(Net):
    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(self.net(given["inputs"]), given["labels"])


@script("hook")
def mapping() -> Script:
    """Of a batch as one mapping, as many models of text take it."""
    return loop(model := OfMapping(), lambda _: model(dict(zip(("inputs", "labels"), batch(), strict=True))))


class OfGraphs(Net):
    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> Any:  # type: ignore[override]  # Net's takes images alone
        return self.net(nodes).index_add(0, edges[0], self.net(nodes)[edges[1]])


@script("hook")
def graphs() -> Script:
    """Of graphs whose nodes lie one after another: as many as the first dimension are nodes."""
    model = OfGraphs()

    def loss(_step: int) -> torch.Tensor:
        nodes, labels = batch(int(torch.randint(100, 200, ())))
        return functional.cross_entropy(model(nodes, torch.randint(len(nodes), (2, 300))), labels)

    return loop(model, loss)


SCRIPTS |= {
    "plain": ("script", lambda: simple(net())),
    "stated_of_all_ranks": ("script", lambda: simple(net(), size=64 * BATCH)),
    "stated_too_small": ("script", lambda: simple(net(), size=BATCH // 2)),
    "smaller_last_batch": ("script", lambda: simple(net(), sizes=third_smaller)),
    "accumulation_left_out": ("script", lambda: simple(net(), accumulate=4)),
    "accumulated": ("hook", lambda: simple(ddp(net()), accumulate=4)),
    "accumulated_and_stated": (f"hook {4 * BATCH}", lambda: simple(net(), accumulate=4)),
    "compiled": ("hook 1024", lambda: simple(aot(ddp(net())))),
    "compiled_inside_of_ddp": ("script", lambda: simple(ddp(aot(net())), sizes=ninth_smaller)),
    "compiled_within": ("script", lambda: simple(aot_within(Net()), size=64 * BATCH, sizes=ninth_smaller)),
    "compiled_after_steps": ("script", lambda: compiled_late(aot)),
    "compiled_within_after_steps": ("script", lambda: compiled_late(aot_within)),
    "compiled_optimizer": ("script", with_compiled_optimizer),
    # Torch calls no hook in what it compiled: no step is seen, and there is no figure.
    "compiled_optimizer_unseen": ("hook", with_compiled_optimizer),
    # What TorchScript has compiled takes no hook.
    "within_torchscript": (f"hook {BATCH}", lambda: simple(torch.jit.script(Net()))),
    "private": ("hook", gradients_of_each_sample),
    "private_and_stated": (f"hook {BATCH}", gradients_of_each_sample),
    "adversarial": ("hook", lambda: gan(apart=False)),
    "adversarial_apart": ("hook", lambda: gan(apart=True)),
    "adversarial_and_stated": (f"hook {BATCH}", lambda: gan(apart=True)),
    "projected_and_stated": (f"hook {BATCH}", lambda: projected(net())),
    "projected_divided": ("hook", lambda: projected(divided(net()))),
    "projected_divided_and_stated": (f"hook {BATCH}", lambda: projected(divided(net()))),
    # A new optimizer for each step.
    "restarted": (f"hook {BATCH}", lambda: several_optimizers(lambda _: sgd(model), model := net())),
    "perturbed_twice": ("hook", perturbed),
    "perturbed_and_stated_of_two_ranks": (f"hook {2 * BATCH}", perturbed),
    "critic_of_one_module": ("hook", critic_of_one_module),
    "recomputed_and_a_critic": ("hook", lambda: critic_of_one_module(reentrant=False)),
    "recomputed_reentrant_and_a_critic": ("hook", lambda: critic_of_one_module(reentrant=True)),
    "recomputed_for_two": ("hook", lambda: recomputed_for_two(reentrant=False)),
    "recomputed_reentrant_for_two": ("hook", lambda: recomputed_for_two(reentrant=True)),
    "recomputed": ("hook", lambda: checkpointed(reentrant=False)),
    "recomputed_reentrant": ("hook", lambda: checkpointed(reentrant=True)),
    "time_major": ("hook", lambda: text(time_major=True)),
    "time_major_and_stated": ("script", lambda: text(time_major=True)),
    "batch_major": ("hook", lambda: text(time_major=False)),
    "tokens": ("script", lambda: text(time_major=True, unit="tokens", size=7 * BATCH)),
    "time_stated": (f"hook {BATCH}", lambda: as_long_as_stated(Cells(), [5] * STEPS)),
    "time_stated_for_a_class": (f"hook {BATCH}", lambda: as_long_as_stated(Ends(), [5] * STEPS, ends=True)),
    "time_stated_and_written": (f"hook {BATCH}", lambda: as_long_as_stated(Places(), [5] * STEPS)),
    "time_as_long_as_the_first_batches": (
        f"hook {BATCH}", lambda: as_long_as_stated(Cells(), [BATCH] * 12 + [5] * (STEPS - 12)),
    ),
}  # fmt: skip


def state_of(trained: dict[str, Any]) -> str:
    """Of weights, running statistics, gradients, momentum and random state."""
    model, optimizer = trained["model"], trained["optimizer"]
    tensors = [*model.state_dict().values(), *(each.grad for each in model.parameters() if each.grad is not None)]
    tensors += [value for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value)]
    digest = hashlib.sha256()
    for placed in (*tensors, torch.get_rng_state()):
        each = placed.to_local() if hasattr(placed, "to_local") else placed
        digest.update(each.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def trained(name: str, source: str) -> dict[str, Any]:
    """What this training leaves, and what the meter of it says."""
    torch.manual_seed(0)
    meter, own = None, []
    if source.startswith("hook"):
        from gpu_runner_inside.meter import hook

        os.environ["RUNNER_METER_BATCH"] = source[len("hook ") :] or "0"
        hook.install(lambda module, attach: attach(importlib.import_module(module)))
    training = SCRIPTS[name][1]()
    what = next(training)
    if source == "script":
        import runner_meter

        meter = runner_meter.start(**what)
    for taken in training:
        own.append(taken)
        if meter is not None:
            meter.step()
    reports = Path(os.environ["RUNNER_RUN_DIR"], "ranks")
    left = reports / "0.report.json"
    report = json.loads(left.read_text()) if left.exists() else None
    began = 0 if report is None else 1 + report["warmup_steps"]
    return {
        "name": name,
        "state": state_of(what),
        "compiled": {kind: dict(counts) for kind, counts in dynamo.counters.items() if kind not in NO_GRAPHS},
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "own": sum(own[began : began + report["steps"]]) if report else None,
        "report": report,
    }


def in_a_process(name: str, source: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=ROOT) as run_dir:
        left = Path(run_dir, "left.json")
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(SystemExit):
                os.environ.update(RUNNER_RUN_DIR=run_dir, RUNNER_TOKEN="t", RUNNER_RANK="0", RUNNER_WORLD="1")
                for variable in ("RUNNER_METER_OWNER", "RUNNER_METER_UNWATCHED", "RUNNER_RENDEZVOUS"):
                    os.environ.pop(variable, None)
                try:
                    left.write_text(json.dumps(trained(name, source)))
                    code = 0
                finally:
                    sys.stderr.flush()
                    os._exit(code)
        os.waitpid(child, 0)
        found: dict[str, Any] = json.loads(left.read_text())
        return found


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or SCRIPTS:
        plain, metered = in_a_process(name, ""), in_a_process(name, SCRIPTS[name][0])
        same = {each: plain[each] == metered[each] for each in ("state", "compiled")}
        if not all(same.values()):
            print({each: (plain[each], metered[each]) for each in same}, file=sys.stderr)
        more = metered["peak_bytes"] - plain["peak_bytes"]
        print(json.dumps({**metered, "same": same, "more_bytes": more}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
