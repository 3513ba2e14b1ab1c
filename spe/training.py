"""The training loop (chapter 6): any model with a `loss`, killed and resumed at any moment.

`fit` takes a model, a function that draws a batch, and a number of updates. It validates as it
goes, keeps a copy of the best weights, and writes checkpoints from which the next call continues
as if nothing had happened: the final weights are bit-identical to those of an uninterrupted run
on the same CPU with as many threads.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from spe.checks import check_count

SCHEDULES = ("onecycle", "halving", "constant")
Model = Any  # an nn.Module with loss(batch, generator), such as those of spe.models
CHECK_EVERY = 32  # updates between two looks at the loss: each look waits for the device


class Diverged(FloatingPointError):
    """The loss or a weight stopped being finite."""


@dataclass
class History:
    """What happened during `fit`: one row per validation, and how it ended."""

    rows: list[dict[str, float]] = field(default_factory=list)
    updates: int = 0  # updates done
    seconds: float = 0.0  # time spent in `fit`, over all its starts
    best_update: int = 0
    best_score: float = -math.inf
    stopped: str = ""  # "finished" or "patience"


def learning_rate(update: int, updates: int, schedule: str, peak: float, halve_every: int) -> float:
    """The learning rate of one update, a pure function, so that a resumed run needs no state.

    "onecycle" rises from peak/25 to the peak in the first 30 % and falls to zero along a cosine;
    "halving" is the paper's (Appendix A: the peak, cut in half every `halve_every` updates).
    """
    if schedule == "constant":
        return peak
    if schedule == "halving":
        return peak * 0.5 ** (update // halve_every)
    rise = 0.3 * updates
    if update < rise:
        return peak * (1 / 25 + (1 - 1 / 25) * 0.5 * (1 - math.cos(math.pi * update / rise)))
    return peak * 0.5 * (1 + math.cos(math.pi * (update - rise) / (updates - rise)))


def fit(
    model: Model,
    sample: Callable[[torch.Generator], Any],
    *,
    updates: int,
    generator: torch.Generator,
    schedule: str = "onecycle",
    peak_lr: float = 3e-3,
    halve_every: int = 5000,
    validate: Callable[[Model], dict[str, float]] | None = None,
    validate_every: int = 250,
    select: str = "accuracy",
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    mixed_precision: bool = False,
    report: Callable[[dict[str, float]], None] | None = None,
    progress: bool | None = None,
) -> History:
    """Train `model` in place with Adam and leave its best weights in it (chapter 6).

    `sample(generator)` draws a batch for `model.loss(batch, generator)`; `generator` is the only
    source of randomness and lives on the model's device. `validate(model)` returns scores (higher
    is better), of which `select` chooses the weights to keep; without it the last weights stay.
    `patience` stops after that many validations without a better score. With `checkpoint`, a file,
    progress is written there every `checkpoint_seconds`, and a later call with the same arguments
    continues from it, or returns at once what is finished. Only the settings of this call are
    compared with the file's, not `sample` or the model's options: give each experiment a file of
    its own. (A network with dropout draws from torch's global generator, which the file does not
    hold: resumed, it ends at other weights.) `report` receives each validation's row; `progress`
    shows a bar (None: only on a terminal). The model is left in evaluation mode.
    """
    from tqdm import tqdm

    if schedule not in SCHEDULES:
        raise ValueError(f"schedule: got {schedule!r}, expected one of {', '.join(SCHEDULES)}")
    counts = {"updates": updates, "validate_every": validate_every, "halve_every": halve_every}
    if patience is not None:
        counts["patience"] = patience
        if validate is None:
            raise ValueError(f"patience={patience} counts validations, and validate is None")
    for name, value in counts.items():
        check_count(name, value)
    if checkpoint is not None:
        import safetensors  # noqa: F401  if it is missing, say so before the work is done

        checkpoint = Path(checkpoint)

    model.to(memory_format=torch.channels_last)
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=peak_lr)
    device = next(model.parameters()).device
    settings = {
        "updates": updates,
        "schedule": schedule,
        "peak_lr": peak_lr,
        "halve_every": halve_every,
        "validate_every": validate_every,
        "select": select,
        "patience": patience,
        "mixed_precision": mixed_precision,
        "device": device.type,
    }
    history = History()
    best = _copy(model)
    running = torch.zeros((), dtype=torch.float64, device=device)
    if checkpoint is not None and checkpoint.exists():
        history = _load(checkpoint, settings, model, best, optimizer, running, generator)

    started = time.monotonic() - history.seconds
    saved = time.monotonic()
    first_since_row = history.rows[-1]["update"] if history.rows else 0
    disable = None if progress is None else not progress  # None: shown on a terminal only
    bar = tqdm(total=updates, initial=history.updates, unit="update", disable=disable)
    with _training(model), _half_precision_encoder(model, mixed_precision), bar:
        while not history.stopped:
            lr = learning_rate(history.updates, updates, schedule, peak_lr, halve_every)
            for group in optimizer.param_groups:
                group["lr"] = lr
            loss = model.loss(sample(generator), generator=generator)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            running += loss.detach()
            history.updates += 1
            update = history.updates
            bar.update()

            row_due = update % validate_every == 0 or update == updates
            if row_due or update % CHECK_EVERY == 0:
                total = running.item()
                if not math.isfinite(total):
                    model.load_state_dict(best)
                    raise Diverged(_divergence("the loss", update, checkpoint))
            overdue = checkpoint is not None and time.monotonic() - saved >= checkpoint_seconds
            if (row_due or overdue) and not _finite(model):
                model.load_state_dict(best)
                raise Diverged(_divergence("a weight", update, checkpoint))
            if row_due:
                row = {"update": update, "loss": total / (update - first_since_row), "lr": lr}
                noise = getattr(model, "noise", None)
                if noise is not None:
                    row["noise"] = noise.item()
                if validate is not None:
                    model.eval()
                    with torch.inference_mode():
                        scores = validate(model)
                    model.train()
                    if select not in scores:
                        raise ValueError(f"select={select!r}; expected one of {', '.join(scores)}")
                    if taken := scores.keys() & {*row, "seconds"}:
                        raise ValueError(
                            f"validate returns {', '.join(sorted(taken))}, which fit records "
                            "itself; expected other names"
                        )
                    row |= scores
                history.seconds = time.monotonic() - started
                row["seconds"] = round(history.seconds, 1)
                history.rows.append(row)
                first_since_row = update
                running.zero_()
                score = row[select] if validate is not None else -row["loss"]
                if not math.isfinite(score):
                    model.load_state_dict(best)
                    raise Diverged(_divergence(f"the score {select!r}", update, checkpoint))
                if validate is None or score > history.best_score:
                    history.best_score, history.best_update = score, update
                    best = _copy(model)
                shown = ("loss", select, "noise")
                bar.set_postfix({k: f"{row[k]:.3f}" for k in shown if k in row})
                if report is not None:
                    report(row)
                if patience is not None:
                    waited = sum(r["update"] > history.best_update for r in history.rows)
                    if waited >= patience:
                        history.stopped = "patience"
                if update == updates:
                    history.stopped = "finished"

            if checkpoint is not None and (overdue or history.stopped):
                history.seconds = time.monotonic() - started
                _save(checkpoint, settings, history, model, best, optimizer, running, generator)
                saved = time.monotonic()
    model.load_state_dict(best)
    return history


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)  # mkstemp's file is private; give it the mode of an ordinary one
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _finite(model: nn.Module) -> bool:
    return bool(torch.stack([p.detach().isfinite().all() for p in model.parameters()]).all())


def _divergence(what: str, update: int, checkpoint: Path | None) -> str:
    kept = "the model holds the best weights so far"
    if checkpoint is not None and checkpoint.exists():
        kept += f" and {checkpoint} the last good state"
    return f"{what} stopped being finite at or shortly before update {update}; {kept}"


def _save(
    checkpoint: Path,
    settings: dict[str, Any],
    history: History,
    model: nn.Module,
    best: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    running: Tensor,
    generator: torch.Generator,
) -> None:
    """Everything the loop needs to go on, in one file: tensors, and the rest as JSON."""
    from safetensors.torch import save

    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"best.{k}": v for k, v in best.items()}
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        tensors |= {f"adam.{i}.{k}": v for k, v in optimizer.state[parameter].items()}
    tensors |= {"running": running, "generator": generator.get_state()}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    about = {"settings": settings, "history": vars(history)}
    state = json.dumps(about, default=lambda number: number.item())  # numpy's
    write_atomically(checkpoint, save(tensors, metadata={"state": state}))


def _load(
    checkpoint: Path,
    settings: dict[str, Any],
    model: nn.Module,
    best: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    running: Tensor,
    generator: torch.Generator,
) -> History:
    """Put all back in place that `_save` wrote; returns the history."""
    from safetensors import SafetensorError, safe_open

    afresh = "delete the file to start afresh"
    try:
        with safe_open(checkpoint, "pt") as file:
            state = json.loads(file.metadata()["state"])
            stored = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        before, history = state["settings"], History(**state["history"])
    except (SafetensorError, json.JSONDecodeError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{checkpoint} is no checkpoint ({error}); {afresh}") from error
    other = {k: v for k, v in before.items() if settings.get(k) != v}
    if other:
        raise ValueError(
            f"{checkpoint} was written with other settings: it has {other}, this call has "
            f"{ {k: settings.get(k) for k in other} }; {afresh}"
        )
    try:
        model.load_state_dict({k[6:]: v for k, v in stored.items() if k.startswith("model.")})
        for name, value in best.items():
            value.copy_(stored[f"best.{name}"])
        for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
            prefix = f"adam.{i}."
            if f"{prefix}step" not in stored:
                continue  # it never had a gradient
            optimizer.state[parameter] = {"step": stored[f"{prefix}step"]} | {
                moment: torch.empty_like(parameter).copy_(stored[prefix + moment])
                for moment in ("exp_avg", "exp_avg_sq")
            }
        running.copy_(stored["running"])
        generator.set_state(stored["generator"])
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{checkpoint} does not fit this model ({error}); {afresh}") from error
    return history


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Training mode for a while; evaluation mode after it, whatever happens."""
    model.train()
    try:
        yield
    finally:
        model.eval()


@contextmanager
def _half_precision_encoder(model: Model, enabled: bool) -> Iterator[None]:
    """Run the encoder in bfloat16, which needs no loss scaling; the Gaussians stay in float32."""
    if not enabled:
        yield
        return
    device = next(model.parameters()).device.type

    def half(encoder: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return type(encoder).forward(encoder, images).float()

    model.encoder.forward = MethodType(half, model.encoder)  # a copy of it takes its own weights
    try:
        yield
    finally:
        del model.encoder.forward
