"""The program of a Nursery: loads the command line, then forks for each command that is asked for on its socket."""

import gc
import os
import pickle
import selectors
import signal
import socket
import sys

from typer.testing import CliRunner

from busway.cli import main
from busway.cli.app import app


def wait(listener: socket.socket) -> bool:
    """Whether this is a process that has a command to run; else nobody asks any more."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                if (child := begin(connection)) == 0:
                    return True
                watched = os.pidfd_open(child)
                children[watched] = child, connection
                selector.register(watched, selectors.EVENT_READ)
                selector.register(connection, selectors.EVENT_READ, child)
            elif key.data is not None:  # who asked is gone
                os.kill(key.data, signal.SIGKILL)
                selector.unregister(key.fileobj)
            elif key.fd in children:
                child, connection = children.pop(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                selector.unregister(key.fd)
                os.close(key.fd)
                if connection.fileno() in selector.get_map():
                    selector.unregister(connection)
                with connection:
                    try:
                        connection.sendall(str(status).encode())
                    except ConnectionError:
                        pass
            else:  # stdin has ended
                for child, _ in children.values():
                    os.kill(child, signal.SIGKILL)
                return False


def begin(connection: socket.socket) -> int:
    """Fork. The child has taken everything of the command when this returns."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as asked:
        words, environment, folder = pickle.load(asked)
    child = os.fork()
    for number, stream in enumerate(streams):
        if child == 0:
            os.dup2(stream, number)
        os.close(stream)
    if child == 0:
        connection.close()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = words
    return child


if __name__ == "__main__":
    for words in (["--help"], ["pub", "topic", "text", "--unheard-of"]):  # what is loaded only then is loaded now
        CliRunner().invoke(app, words)
    gc.freeze()
    if wait(socket.socket(fileno=int(sys.argv[1]))):
        main()
