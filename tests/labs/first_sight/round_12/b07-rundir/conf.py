"""Defaults, overrides of the form group.key=value, and one output folder for each run."""
import datetime
import json
import os

NOW = datetime.datetime.now()

DEFAULTS = {
    "model": {"dim": 32, "layers": 2},
    "train": {"lr": 0.01, "epochs": 3, "batch": 32},
    "run": {"root": "/tmp/textcls-outputs", "dir": "{date}/{time}"},
}


def load(overrides):
    cfg = json.loads(json.dumps(DEFAULTS))
    for o in overrides:
        key, value = o.split("=", 1)
        group, name = key.split(".")
        cfg[group][name] = type(cfg[group][name])(value)
    sub = cfg["run"]["dir"].format(date=f"{NOW:%Y-%m-%d}", time=f"{NOW:%H-%M-%S-%f}"[:-3])
    cfg["run"]["dir"] = os.path.join(cfg["run"]["root"], sub)
    os.makedirs(cfg["run"]["dir"], exist_ok=True)
    return cfg
