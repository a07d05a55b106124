"""TLS with certificates on both sides: the server refuses a client that shows none. (Needs the package trustme.)"""

import tempfile
from pathlib import Path

import trustme

import busway


def make_certificates(folder: Path):
    """An authority, and a certificate for the server and for one client. Yours come from your own authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, identity in (("server", "localhost"), ("client", "sensor-7.example.org")):
        issued = authority.issue_cert(identity, common_name=identity)
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")


async def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_certificates(folder)
        ca = str(folder / "ca.pem")
        server_tls = busway.TLS(cert=f"{folder}/server.pem", key=f"{folder}/server.key", ca=ca)
        client_tls = busway.TLS(cert=f"{folder}/client.pem", key=f"{folder}/client.key", ca=ca, server_name="localhost")

        async with busway.serve("tls://127.0.0.1:0", tls=server_tls) as server:
            address = server.addresses[0]
            async with busway.connect(address, tls=client_tls) as bus:
                (connection,) = (await bus.info())["connections"]
                print("the broker knows this client as", connection["peer_name"])

            try:
                await busway.connect(address, tls=busway.TLS(ca=ca, server_name="localhost"), reconnect=None, timeout=5)
            except busway.BusError as error:
                print("without a certificate:", type(error).__name__)


busway.run(main())
