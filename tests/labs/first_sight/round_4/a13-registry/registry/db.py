import os
import sqlite3

SCHEMA = """create table if not exists checkpoints (
    id integer primary key autoincrement, step integer, loss real, path text, shown integer default 0)"""


def connect():
    con = sqlite3.connect(os.environ["REGISTRY"], timeout=3600)
    con.execute(SCHEMA)
    return con


def register(step, loss, path):
    con = connect()
    with con:
        con.execute("insert into checkpoints (step, loss, path) values (?, ?, ?)", (step, loss, path))
    con.close()
