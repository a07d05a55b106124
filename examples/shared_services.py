"""Shared services: the broker asks two stations and calls the willing one; then all; a listener gets copies."""

import busway

DEVICES = {"north": {"17": "breaker closed", "18": "breaker open"}, "south": {"21": "transformer at 71 °C"}}


async def main():
    async with (
        busway.serve() as server,
        server.connect(name="north") as north,
        server.connect(name="south") as south,
        server.connect(name="control") as control,
        # A listener gets copies of the requests on all these topics, and never counts as a provider.
        server.connect() as audit,
        audit.subscribe("scada/**", listen=True) as seen,
    ):
        for station in (north, south):
            own = DEVICES[station.name]
            # The broker asks both stations; the one that has the device says yes and gets the request.
            await station.serve(
                "scada/device",
                lambda message, own=own: own[message.text],
                shared=True,
                ask=lambda message, own=own: message.text in own,
            )
            # Without ask a service is always willing. An async generator sends several replies.
            await station.serve("scada/list", lambda _, own=own: each_of(own), shared=True)

        print("17:", (await control.request("scada/device", "17")).text)
        print("21:", (await control.request("scada/device", "21")).text)
        try:
            await control.request("scada/device", "99")
        except busway.NoResponders as error:
            print("99:", error)

        replies = await control.request_all("scada/list")
        for reply in sorted(replies, key=lambda reply: reply.text):
            print(f"{reply.sender} has {reply.text}")

        # If a service fails, the next one gets the request; request_all reports the failure.
        async with control.serve("scada/list", broken, shared=True):
            replies = await control.request_all("scada/list")
            print(len(replies), "replies, failed:", [(one.sender, str(one.error)) for one in replies.failed])

        await audit.flush()  # the copies have arrived
        async for message in seen:
            print("seen:", message.kind, message.topic, message.text)
            if not seen.pending:
                break


async def each_of(devices):
    for number in devices:
        yield number


def broken(_message):
    raise busway.HandlerError("no connection to the field")


busway.run(main())
