"""`--scope`, at a broker that is in no cluster: its own clients are local, and there are no others."""


async def test_pub_push_and_req(shell, bus):
    async with bus.subscribe("t") as inbox, bus.serve("sum", lambda _: b"3"):
        done = await shell.run("pub", "t", "nobody", "--scope", "remote", "--confirm")
        assert (done.code, done.lines) == (0, ["0"])
        for scope, code in (("remote", 4), ("local", 0)):
            assert (await shell.run("pub", "t", scope, "--scope", scope, "--count", "2")).code == 0
            assert (await shell.run("push", "t", "pushed", "--scope", scope)).code == code
            assert (await shell.run("req", "sum", "--scope", scope)).code == code
        assert (await shell.run("req", "sum", "--scope", "remote", "--all")).code == 4
        assert [(await inbox.recv(timeout=60)).text for _ in range(3)] == ["local", "local", "pushed"]
        assert inbox.pending == 0


async def test_sub_and_reply(shell, bus):
    local = await shell.start("sub", "t", "--scope", "local", "--count", "1", "--raw")
    remote = await shell.start("sub", "t", "--scope", "remote", "--count", "1", "--for", "1s")
    await local.ready()
    await remote.ready()
    await bus.publish("t", b"here")
    assert (await local.end()).out == b"here"
    assert (await remote.end()).code == 3
    serving = await shell.start("reply", "sum", "--body", "3", "--scope", "remote", "--for", "30s")
    await serving.ready()
    assert (await shell.run("req", "sum")).code == 4
    serving.process.terminate()
    await serving.end()


async def test_what_can_not_be_meant(shell):
    done = await shell.run("pub", "t", "x", "--durable", "--scope", "local")
    assert (done.code, "--durable and --scope exclude each other" in " ".join(done.notes.split())) == (2, True)
    assert (await shell.run("pub", "t", "x", "--scope", "near")).code == 2
