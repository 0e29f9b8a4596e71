#!/bin/bash
set -o pipefail
{python} feed.py tokens | {python} train.py
