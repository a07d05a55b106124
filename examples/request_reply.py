"""Typed requests and replies: the HelloRequest of the T2 document, first by hand, then with a handler function."""

import asyncio

import busway


class HelloResponse(busway.Protocol):
    text: str


# A request protocol names the type of its reply.
class HelloRequest(busway.Protocol[HelloResponse], prefix="hello"):
    name: str


async def by_hand(server: busway.Server):
    async with (
        server.connect() as client_1,
        server.connect() as client_2,
        # A client serves HelloRequest at the topic "": all its requests come here.
        client_1.serve(HelloRequest, "") as requests,
        asyncio.TaskGroup() as tasks,
    ):
        # Another client sends a request and later receives the response.
        asking = tasks.create_task(client_2.request("", HelloRequest(name="Alice")))

        # The serving client receives the request and sends the response.
        request = await requests.recv(timeout=5)
        await request.reply(HelloResponse(text=f"Hello {request.value.name}"))

        print("by hand:", (await asking).text)


async def with_a_handler(server: busway.Server):
    def greet(request: HelloRequest) -> HelloResponse:
        if not request.name:
            raise ValueError("nobody to greet")
        return HelloResponse(text=f"Hello {request.name}")

    async with server.connect() as client_1, server.connect() as client_2:
        async with client_1.serve(HelloRequest, "", greet):
            response = await client_2.request("", HelloRequest(name="Bob"))
            print("with a handler:", response.text)
            try:
                await client_2.request("", HelloRequest(name=""))
            except busway.HandlerError as error:
                print("the service says:", error)
        try:
            await client_2.request("", HelloRequest(name="Carol"))
        except busway.NoResponders as error:
            print("nobody serves:", error)


async def main():
    async with busway.serve() as server:
        await by_hand(server)
        await with_a_handler(server)


busway.run(main())
