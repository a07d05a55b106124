"""A channel: two workers share stored jobs, one dies, a rejected job becomes a dead letter, and no job is lost."""

import asyncio
import tempfile

import busway


async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with busway.serve(data=folder) as server, server.connect(name="shop") as shop:
            await shop.create_stream("jobs", ["jobs/**"])
            await shop.publish_many("jobs/bill", [str(number) for number in range(10)], durable=True)

            # The first worker takes four jobs, acknowledges one of them, and dies.
            async with server.connect(name="mortal", reconnect=None) as mortal:
                jobs = await mortal.channel("jobs", "billing", window=4, max_deliveries=2)
                taken = await jobs.take(4, timeout=5, whole=True)
                await taken[0].ack()
            print("done by the first:", taken[0].text)

            # The second worker gets the jobs that the first has not acknowledged, and all others; it rejects job 7.
            done, complete = [], asyncio.Event()

            async def bill(message):
                if message.text == "7":  # an exception would be logged, and the job redelivered
                    message.nack()
                    return
                done.append(int(message.text))
                if len(done) == 8:
                    complete.set()

            async with (
                server.connect(name="worker") as worker,
                worker.subscribe("dead/**") as dead,
                worker.channel("jobs", "billing", handler=bill, concurrency=3),
            ):
                letter = await dead.recv(timeout=5)
                print("dead:", letter.topic, letter.text, "after", letter.fields["dead_deliveries"], "deliveries")
                await complete.wait()
            print("done by the second:", sorted(done))

        # Acknowledgements outlive a restart of the server.
        async with busway.serve(data=folder) as server, server.connect() as bus:
            (billing,) = await bus.channels("jobs")
            print("everything before", billing.floor, "is done, lag", billing.lag)


busway.run(main())
