"""The `agentfly` command. Every import that costs time is inside the command that needs it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentfly_lib.completion import complete_keys, complete_recipes, complete_runs
from agentfly_lib.environment import make_home, prepare_environment
from agentfly_lib.errors import AgentFlyError, UserError
from agentfly_lib.loopback import VIEWER_PORT

if TYPE_CHECKING:
    from agentfly_lib.configs import RunConfig

__all__ = ["main"]

app = typer.Typer(
    name="agentfly",
    help="Train LLM agents that use tools with reinforcement learning, as a durable pipeline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(help="Check recipes and configs.", no_args_is_help=True)
model_app = typer.Typer(help="Make the small demo models.", no_args_is_help=True)
template_app = typer.Typer(help="Check chat templates.", no_args_is_help=True)
resources_app = typer.Typer(help="List and remove containers and control groups of runs.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(model_app, name="model")
app.add_typer(template_app, name="template")
app.add_typer(resources_app, name="resources")

Recipe = Annotated[
    Path, typer.Argument(help="A recipe: a TOML file such as recipes/demo.toml.", autocompletion=complete_recipes)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the recipe, e.g. --set optim.lr=1e-4. Repeatable.",
        autocompletion=complete_keys,
    ),
]
Run = Annotated[Path, typer.Argument(help="A run directory, e.g. runs/demo.", autocompletion=complete_runs)]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the final report, no progress bars or live table.")]


def main() -> None:
    """Runs the command line; exits 2 with one clear message for what the user can mend, 130 on Ctrl-C."""
    try:
        app(standalone_mode=True)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer makes an exit of Ctrl-C in a command.
        if not any(isinstance(each, KeyboardInterrupt) for each in (end, getattr(end.__context__, "__cause__", None))):
            raise
        typer.echo("interrupted; run the same command again to go on", err=True)
        sys.exit(130)
    except BaseExceptionGroup as group:
        _fail(_first_of_ours(group), group)
    except AgentFlyError as error:
        _fail(error, error)
    except BaseException as error:
        import asyncio

        # SIGTERM, which ends a flow in order: as a cancelled task, or as what Prefect's handler raises.
        if not isinstance(error, asyncio.CancelledError) and getattr(error, "signal", None) != signal.SIGTERM:
            raise
        typer.echo("ended by SIGTERM; run the same command again to go on", err=True)
        sys.exit(143)


def _fail(error: BaseException | None, whole: BaseException) -> None:
    from agentfly_lib.visible import visible

    if isinstance(error, UserError):
        typer.echo(visible(f"error: {error}"), err=True)
        sys.exit(2)
    if isinstance(error, AgentFlyError):
        typer.echo(visible(f"{type(error).__name__}: {error}"), err=True)
        typer.echo("Nothing that was finished is lost: run the same command again to go on.", err=True)
        sys.exit(1)
    raise whole


def _first_of_ours(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    for error in group.exceptions:
        found = _first_of_ours(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, AgentFlyError):
            return found
    return None


@app.command()
def train(  # noqa: PLR0917 - options of a command line have names
    recipe: Recipe,
    overrides: Overrides = None,
    quiet: Quiet = False,
    deploy: Annotated[
        bool,
        typer.Option("--deploy", help="Train on a worker: start a flow run of a Prefect deployment (agentfly serve)."),
    ] = False,
    deployment: Annotated[
        str | None, typer.Option(help="With --deploy: name of the deployment; this recipe's own if not given.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="With --deploy: wait until the run has ended. Exits 1 if it failed.")
    ] = False,
) -> None:
    """Train an agent with a recipe. Run the same command again to resume a run that was stopped or killed."""
    config = _load(recipe, overrides)
    if deploy or deployment or wait:
        _deploy(config, recipe, overrides or [], name=deployment, wait=wait)
        return
    _prepare_to_begin(config)
    typer.echo(_run_flow("train", config.run.name, quiet, config).text)


@app.command()
def evaluate(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint (runs/demo/checkpoints/000030), a run directory (its newest checkpoint) or a model "
            "directory."
        ),
    ],
    recipe: Annotated[
        Path | None, typer.Option(help="Recipe to evaluate with; the config of the checkpoint's run if not given.")
    ] = None,
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate a checkpoint, a run's newest checkpoint, or a model directory on the held-out problems."""
    from agentfly_lib.store.recorded import recipe_of

    config = recipe_of(checkpoint, overrides or ()) if recipe is None else _load(recipe, overrides)
    _prepare(config)
    summary = _run_flow("evaluate", checkpoint.name, quiet, config, checkpoint)
    typer.echo(summary.text)


@app.command()
def collect(
    recipe: Recipe,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint or model directory; the recipe's model if not given.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of steps to collect.")] = 1,
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Collect and score rollouts into shards, without training."""
    config = _load(recipe, overrides)
    _prepare(config)
    for shards in _run_flow("collect", config.run.name, quiet, config, checkpoint, steps):
        typer.echo(f"{shards.path}: {shards.trajectories} trajectories in {shards.parts} parts")


@app.command()
def score(
    run: Run,
    reward: Annotated[str | None, typer.Option(help="A built-in reward, or package.module:name.")] = None,
    reward_config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with the reward's keys (name, settings, parts), at its top level or as [agent.reward]."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the reward, e.g. --set agent.reward.settings.x=1. Repeatable.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Score the stored rollouts of a finished run with another reward. Nothing is generated again."""
    from agentfly_lib.configs.rescoring import rescoring_reward
    from agentfly_lib.rewards.registry import build_reward
    from agentfly_lib.store.recorded import recorded_config

    config = recorded_config(_existing_run(run))
    chosen = rescoring_reward(config.agent.reward, name=reward, file=reward_config, overrides=overrides or ())
    _prepare(config)
    build_reward(chosen)
    for scores in _run_flow("score", config.run.name, quiet, config, chosen):
        mean = "none could be scored" if scores.mean is None else f"mean {scores.mean:.4f}"
        typer.echo(f"step {scores.step}: {mean} of {scores.trajectories} trajectories, {scores.dropped} dropped")


@app.command()
def replay(
    run: Run,
    from_step: Annotated[
        int, typer.Option(min=0, help="First step to train again: 0, or one that has a checkpoint.")
    ] = 0,
    to_step: Annotated[
        int | None, typer.Option(min=0, help="Last step to train again; the last stored step if not given.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder to write a checkpoint of the result to.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train again on a run's stored rollouts and compare the weights. Exits 1 if they differ."""
    from agentfly_lib.preflight import replay_range
    from agentfly_lib.store.recorded import recorded_config

    config = recorded_config(_existing_run(run))
    _prepare(config)
    replay_range(config, from_step, to_step)
    report = _run_flow("replay", config.run.name, quiet, config, from_step, to_step, output)
    typer.echo(report.text)
    if not report.same:
        raise typer.Exit(1)


@app.command()
def finetune(recipe: Recipe, overrides: Overrides = None, quiet: Quiet = False) -> None:
    """Fine-tune on trajectories of earlier runs (data.type = "shards"). Run the same command again to resume."""
    from agentfly_lib.data.imitation import imitated

    config = _load(recipe, overrides)
    imitated(config)
    _prepare_to_begin(config)
    typer.echo(_run_flow("finetune", config.run.name, quiet, config).text)


@app.command()
def preferences(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, e.g. runs/demo.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Parquet file to write, for `datasets`.")],
    margin: Annotated[float, typer.Option(min=0, help="Minimum difference between the two rewards.")] = 0.0,
) -> None:
    """Write the best and the worst chain of every group to a file of preference pairs."""
    from agentfly_lib.data.preferences import export_preferences

    pairs, groups = export_preferences([_existing_run(run) for run in runs], output, margin=margin)
    typer.echo(f"{output}: {pairs} pairs from {groups} groups")


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, e.g. runs/demo/checkpoints/000030.")],
    output: Annotated[Path, typer.Argument(help="Folder to create; it must not exist.")],
) -> None:
    """Export a checkpoint as a model directory: safetensors weights, config, tokenizer and chat template."""
    from agentfly_lib.training.export import export_checkpoint

    exported = export_checkpoint(checkpoint, output)
    typer.echo(f"{output}: version {exported.policy_version}, verified")


@app.command()
def prepare(recipe: Recipe, overrides: Overrides = None, quiet: Quiet = False) -> None:
    """Read, check and split a recipe's dataset. Returns at once if that was done before."""
    config = _load(recipe, overrides)
    _prepare(config)
    dataset = _run_flow("prepare", config.run.name, quiet, config)
    typer.echo(
        f"{dataset.path}: {dataset.train_rows} training and {dataset.eval_rows} held-out problems, "
        f"columns {', '.join(dataset.columns) or 'none'}, {dataset.duplicates} duplicates removed"
    )


@app.command()
def plan(
    recipe: Recipe,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="Number of GPUs to plan for; those of this machine if not given.")
    ] = None,
    gpu_memory_gib: Annotated[float | None, typer.Option(min=1, help="Memory of each GPU in GiB.")] = None,
    shape_from: Annotated[
        Path | None,
        typer.Option(help="Folder with the model's config.json, if the model itself is not on this machine."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Show what a recipe would run on which GPU, and whether it fits, without starting it. Exits 1 if it does not."""
    from agentfly_lib.viewer.plan_report import show_plan

    config = _load(recipe, overrides)
    prepare_environment(config.run.root, offline=True, quiet=True)
    if not show_plan(config, gpus=gpus, gpu_memory_gib=gpu_memory_gib, shape_from=shape_from):
        raise typer.Exit(1)


@app.command()
def doctor(
    recipe: Recipe,
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal/--quick", help="Also train two small steps, or only check.")
    ] = True,
    overrides: Overrides = None,
) -> None:
    """Find problems before GPU time is spent, and say how to fix them. Exits 1 if a check fails."""
    config = _load(recipe, overrides)
    from agentfly_lib.configs.hub import names_hub

    prepare_environment(config.run.root, offline=not names_hub(config), quiet=True)
    _add_working_folder()
    from agentfly_lib.doctor import Check, examine, rehearse
    from agentfly_lib.viewer.doctor_report import render_checks

    checks: list[Check] = []
    try:
        checks += examine(config)
        if rehearsal and not any(check.level == "fail" for check in checks):
            checks += rehearse(config, lambda small: _run_flow("train", small.run.name, True, small))
    finally:  # what was found before something broke
        well = render_checks(checks)
    if not well:
        raise typer.Exit(1)


@app.command()
def ledger(run: Run) -> None:
    """Print each step's balance: problems x chains = scored + truncated + failed + dropped. Exits 1 if one is off."""
    from rich.console import Console
    from rich.table import Table

    from agentfly_lib.store.layout import RunDirectory
    from agentfly_lib.store.ledger import run_balance

    balances = run_balance(RunDirectory(_existing_run(run)))
    table = Table(title=f"Ledger of {run}", title_justify="left")
    for column in ("step", "problems", "chains", "requested", "scored", "truncated", "failed", "dropped", "balance"):
        table.add_column(column, justify="right")
    for row in balances:
        counts = (row.step, row.problems, row.chains, row.requested, row.scored, row.truncated, row.failed, row.dropped)
        table.add_row(*[str(count) for count in counts], "ok" if row.balanced else "OFF")
    Console().print(table)
    off = [row.step for row in balances if not row.balanced]
    if off:
        typer.echo(
            f"the ledger does not balance in step {', '.join(map(str, off))}; run the training command again to finish "
            "it",
            err=True,
        )
        raise typer.Exit(1)


@app.command()
def show(
    run: Run,
    step: Annotated[int | None, typer.Option(help="Step to show; the newest if not given.")] = None,
    trajectory: Annotated[str | None, typer.Option(help="Show only the trajectory with this id.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of trajectories to show.")] = 3,
) -> None:
    """Print trajectories in readable form: turns, tool calls, rewards, and which tokens were trained on."""
    from agentfly_lib.viewer.show import show_run

    directory = _existing_run(run)
    prepare_environment(directory.parent)
    show_run(directory, step=step, trajectory=trajectory, count=count)


@app.command()
def runs(root: Annotated[Path, typer.Argument(help="Folder of all runs.")] = Path("runs")) -> None:
    """List the runs in a folder, with their progress and rewards."""
    from agentfly_lib.evaluation.runs import find_runs
    from agentfly_lib.viewer.compare_report import runs_text

    found, faults = find_runs(root)
    if not found and not faults:
        raise UserError(f"{root} holds no runs; train something first (agentfly train), or name another folder")
    typer.echo(runs_text(found))
    for fault in faults:
        typer.echo(fault, err=True)


@app.command()
def compare(
    run: Annotated[list[Path], typer.Argument(help="Run directories; the others are compared with the first.")],
    target: Annotated[
        float | None,
        typer.Option(help="Compare tokens and time to this reward; the lowest of the runs' last rewards if not given."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the tables to this file, as Markdown.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the curves to this file, as PNG.")] = None,
    track: Annotated[bool, typer.Option(help="Log tables and curves to the first run's MLflow run.")] = False,
) -> None:
    """Compare runs: config differences, held-out reward with a paired test, tokens and time to reach a reward."""
    from agentfly_lib.viewer.compare import show_comparison, track_comparison

    prepare_environment(run[0].parent, quiet=True)
    typer.echo(show_comparison(run, target=target, markdown=markdown, figure=figure))
    if track:
        track_comparison(run, target=target)


@app.command()
def top(
    run: Annotated[
        Path | None, typer.Argument(help="A run directory; if not given, the most recently active run under --root.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    once: Annotated[bool, typer.Option("--once", help="Print the state once, without a live view.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the state once, as JSON.")] = False,
) -> None:
    """Show what a run is doing: stages, chains, engines, pools, ranks, warnings. Exits 1 if it is not running."""
    from agentfly_lib.viewer.top import is_running, newest_run, state_json, state_of, watch_run

    directory = newest_run(root) if run is None else _existing_run(run)
    if json:
        state = state_of(directory)
        running = is_running(state)
        typer.echo(state_json(state))
    else:
        running = watch_run(directory, once=once)
    if not running:
        raise typer.Exit(1)


@app.command()
def view(  # noqa: PLR0917 - options of a command line have names
    run: Run,
    other: Annotated[Path | None, typer.Option(help="Another run to compare with.")] = None,
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, help="Port of the page; 0 picks a free one.")] = VIEWER_PORT,
    export: Annotated[
        Path | None,
        typer.Option(help="Write a file instead of serving: .html (the run and a sample), .jsonl or .parquet."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Export only this group, e.g. 000002-00000.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Export only this step.")] = None,
    count: Annotated[
        int, typer.Option(min=1, max=100, help="Number of trajectories in the sample of an .html file.")
    ] = 24,
) -> None:
    """View trajectories in the browser: filter, sort, compare chains and runs, colour tokens, export.

    Serves until Ctrl-C."""
    from agentfly_lib.viewer.web.serve import export_run, serve_viewer

    directory = _existing_run(run)
    prepare_environment(directory.parent, quiet=True)
    if other is not None:
        _existing_run(other)
    if export is None:
        serve_viewer(directory, host=host, port=port, other=other)
    else:
        written = export_run(directory, export, group=group, step=step, count=count)
        typer.echo(f"{export}: {written} trajectories")


@app.command()
def ui(
    root: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect page.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow page.")] = 5000,
) -> None:
    """Serve the Prefect and MLflow pages of the runs on this machine until Ctrl-C."""
    from agentfly_lib.leash import leash
    from agentfly_lib.serve import serve_pages

    prepare_environment(root)
    with leash():
        serve_pages(root, host=host, prefect_port=prefect_port, mlflow_port=mlflow_port)


@app.command()
def serve(  # noqa: PLR0917 - options of a command line have names
    root: Annotated[Path, typer.Option(help="Folder of all runs and of the servers' stores.")] = Path("runs"),
    host: Annotated[
        str,
        typer.Option(
            help="Address to bind. There is no authentication: on any interface but loopback, everyone who can reach "
            "it has full access."
        ),
    ] = "127.0.0.1",
    prefect_port: Annotated[int, typer.Option(help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of the MLflow server.")] = 5000,
    project: Annotated[Path, typer.Option(help="Folder with prefect.yaml, flows and recipes.")] = Path(),
    worker: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Also run a worker and the deployments, or only the servers.")
    ] = True,
) -> None:
    """Run Prefect and MLflow servers, a worker and the deployments of prefect.yaml until Ctrl-C."""
    from agentfly_lib.leash import leash

    prepare_environment(root, offline=False)  # each flow run decides by its recipe
    from agentfly_lib.serve import ServeOptions, serve

    options = ServeOptions(
        root=root, project=project, host=host, prefect_port=prefect_port, mlflow_port=mlflow_port, worker=worker
    )
    with leash():
        serve(options)


@config_app.command("check")
def config_check(recipe: Recipe, overrides: Overrides = None) -> None:
    """Print the resolved config of a recipe, and check it as a run does: tools, rewards, files, and all other names."""
    from agentfly_lib.configs import config_toml

    config = _load(recipe, overrides)
    typer.echo(config_toml(config), nl=False)
    _check(config)


@model_app.command("tiny")
def model_tiny(
    seed: Annotated[int, typer.Option(help="Seed of its weights.")] = 0,
    print_path: Annotated[bool, typer.Option("--print-path", help="Print only the path of the model.")] = False,
) -> None:
    """Make the small demo model (about a minute), or find it if it was made before."""
    from rich.progress import Progress

    from agentfly_lib.configs import TinyModelConfig

    prepare_environment(Path("runs"))
    from agentfly_lib.models.tiny import ensure_tiny

    config = TinyModelConfig(seed=seed)
    if print_path:
        typer.echo(str(ensure_tiny(config).path))
        return
    with Progress() as progress:
        bar = progress.add_task("tiny model", total=config.warm_steps + config.spoil_steps)
        model = ensure_tiny(
            config, progress=lambda done, total, _loss: progress.update(bar, completed=done, total=total)
        )
    typer.echo(f"{model.path}\nfingerprint {model.fingerprint}")


@template_app.command("check")
def template_check(
    model: Annotated[str, typer.Argument(help="A model directory or a hub id.")],
    template: Annotated[
        str | None,
        typer.Option(help="Name of a template family, shipped:NAME, or a .jinja file; the model's own if not given."),
    ] = None,
    parser: Annotated[
        str | None,
        typer.Option(help="Tool-call parser; if not given, the one for the format that the template teaches."),
    ] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Turn reasoning on or off, if the template can.")
    ] = None,
) -> None:
    """Check how a model's chat template affects training. Exits 1 if it would break it."""
    from agentfly_lib.viewer.template_report import show_template

    prepare_environment(Path("runs"), offline=Path(model).exists(), quiet=True)
    if not show_template(model, template=template, parser=parser, thinking=thinking):
        raise typer.Exit(1)


@resources_app.command("ls")
def resources_ls() -> None:
    """List containers and control groups made by agentfly, in use or left behind by a killed run."""
    from agentfly_lib.resources.leftovers import find
    from agentfly_lib.viewer.resources_report import render_leftovers

    typer.echo(render_leftovers(find()), nl=False)


@resources_app.command("reap")
def resources_reap(
    run: Annotated[str | None, typer.Option(help="Only what this run has made.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also remove what is in use, or was made by another machine.")
    ] = False,
) -> None:
    """Remove containers and control groups that killed runs have left behind."""
    from agentfly_lib.resources.leftovers import find, reap
    from agentfly_lib.viewer.resources_report import render_leftovers

    removed = reap(find(), run=run, everything=everything)
    typer.echo(render_leftovers(removed), nl=False)
    typer.echo(f"{len(removed)} removed")


def _deploy(config: RunConfig, recipe: Path, overrides: list[str], *, name: str | None, wait: bool) -> None:
    """Has a worker train; the config was checked here, and is made again there."""
    import asyncio

    from agentfly_lib.configs.load import assign_key, parse_overrides
    from agentfly_lib.preflight import data_files
    from agentfly_lib.serve.command import served_api

    changes: dict[str, Any] = {}
    for key, value in parse_overrides(overrides):
        assign_key(changes, key, value)
    served = served_api(config.run.root)
    prepare_environment(config.run.root, quiet=True)
    make_home()
    trigger = _entry("agentfly.operations", "trigger")
    options = {"files": data_files(config), "name": name, "served": served, "root": config.run.root}
    try:
        ended = asyncio.run(trigger(recipe, changes, **options, wait=wait, say=typer.echo))
    except KeyboardInterrupt:
        typer.echo("the run continues on its worker; cancel it on its Prefect page", err=True)
        sys.exit(130)
    if wait and ended.state != "Completed":
        raise typer.Exit(1)


def _load(recipe: Path, overrides: list[str] | None) -> RunConfig:
    from agentfly_lib.configs import load_config

    return load_config(recipe, overrides or ())


def _prepare(config: RunConfig) -> None:
    """Sets the process's environment, before prefect, mlflow, ray or vllm are imported, and looks for what is wrong."""
    try:
        config.run.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"run.root = {config.run.root}: this folder cannot be made ({error.strerror}); name another"
        ) from error
    _check(config)


def _check(config: RunConfig) -> None:
    """Sets the process's environment, and looks for what is wrong. Writes nothing."""
    from agentfly_lib.configs.hub import names_hub

    prepare_environment(config.run.root, offline=not names_hub(config), quiet=True)
    _add_working_folder()
    from agentfly_lib.preflight import check_run

    check_run(config)


def _prepare_to_begin(config: RunConfig) -> None:
    """Also refuses, in a second, a run that has another config or is in use; the flow holds the lock while it runs."""
    from agentfly_lib.preflight import check_same_config
    from agentfly_lib.store.layout import RunDirectory
    from agentfly_lib.store.lock import RunLock

    _prepare(config)
    check_same_config(config)
    with RunLock(RunDirectory(config.run.directory)):
        pass


def _add_working_folder() -> None:
    """Tools and rewards of the user's own may lie there, as for `python -m`."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _flow(name: str) -> Callable[..., Any]:
    return _entry("agentfly.flows", name)


def _entry(group: str, name: str) -> Callable[..., Any]:
    """A flow or an operation by its entry point: the library does not import what stands above it."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise UserError(
        f"the {group} entry point {name!r} is not installed; install the project with its flows (make setup)"
    )


def _run_flow(name: str, title: str, quiet: bool, *arguments: Any) -> Any:
    import asyncio
    from importlib.metadata import entry_points

    from agentfly_lib.leash import leash
    from agentfly_lib.viewer.live import LiveDisplay

    make_home()
    flow = _flow(name)
    with ExitStack() as around:
        around.enter_context(leash())
        for entry in entry_points(group="agentfly.around_flows"):
            around.enter_context(entry.load()())
        around.enter_context(LiveDisplay(title, quiet=quiet)).use()
        return asyncio.run(flow(*arguments))


def _existing_run(run: Path) -> Path:
    if (run / "config.toml").exists():
        from agentfly_lib.store.layout import RunDirectory
        from agentfly_lib.store.layout_version import check_layout

        check_layout(RunDirectory(run))
        return run
    near = sorted(str(path.parent) for path in run.parent.glob("*/config.toml"))
    raise UserError(f"{run} is not a run directory (no config.toml). Runs there: {', '.join(near) or 'none'}")
