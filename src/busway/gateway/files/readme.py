"""The file `README` of a mount, which explains each file and its limits to users. Values only, for `door.py`."""

from typing import Final

from busway.gateway.files.config import Mount

_TEXT: Final = """\
A Busway message bus as files. Every program that can open, read, write and poll a file is a client of it.

topics/       A file for each topic. Each published message adds a line to it; each line written to it is published.
                  touch topics/price; tail -f topics/price &
                  echo 3012.5 > topics/price
              cat prints the messages since the first use of the file, the last {kept} bytes of them. A file opened for
              reading and writing (exec 3<>topics/price) begins with the next message, and a read waits for it.
              A file exists once its topic is used here: touch topics/price creates it, and the mount follows the topic.
              The segments of a topic are folders: mkdir -p topics/price && echo 1 > topics/price/eth. Or write %2F:
              a name with %XX always exists and always names a topic: tail -f topics/price%2Feth needs neither a folder
              nor touch, and %70rice is the topic price where price is a folder. rm and rmdir remove listed names.
              * in a name stands for one segment, ** for any number: cat 'topics/**'. Names over 255 bytes are not
              listed. A write is accepted or refused as a whole (EMSGSIZE: a line over {line} bytes; json/: EINVAL, an
              invalid line).
json/         The same topics; each line is an object with topic, payload, time, sender and fields. Objects with payload
              and fields can be written: echo '{{"payload": "1", "fields": {{"venue": "krk"}}}}' > json/price
services/     A file for each service, created like topics: write a request and read its reply on the same open file.
                  exec 3<>services/sum; echo '[1,2]' >&3; cat <&3
              No provider: EHOSTUNREACH. No answer within {request:g} s: ETIMEDOUT. The service failed: EIO.
streams/      A folder for each stream with a file for each stored message, named by its offset. The newest {listed}
              are listed; all can be read.

Extended attributes (getfattr -d FILE): user.busway.field.NAME are the fields of a stored message. On the file of a
topic they are the fields of messages published through it: setfattr -n user.busway.field.venue -v krk topics/price

channels      The channels of the two-file protocol, one name per line; each has the number of its line, from 0.
              Appended names are registered: at most {channels} channels, and {longest} bytes per name. A channel is a
              topic.
fusebus       Each open file is a client. Numbers are unsigned, 64 bits, in the byte order of the machine. Write
                  0, regular expression     subscribe to the channels whose whole name it matches, or to the channel
                                            of this name; returns the number of the subscription. NULs at the end are
                                            padding: a number above the length of the write can't be returned (ENOSPC).
                  1, subscription           unsubscribe
                  2, channel, payload       publish, at most {message} bytes
              A read returns the next whole messages that the client has not received, as many as fit. Each is
                  channel, serial number, client, size, stride; then the payload, padded to stride (a multiple of 16)
              A read without a message waits (O_NONBLOCK: EAGAIN); select, poll and epoll report a message.
              A new client begins with the oldest message. The buffer has {messages} messages or {bytes} bytes; a slower
              client misses some: the serial numbers have gaps, and getfattr -n user.busway.lost fusebus counts them.
              A client number of 2**63 or more is a native publisher. On the bus, messages have the fields serno and
              client.
              Errors: EINVAL (unknown type, invalid expression), ENOENT (no such subscription), ENXIO (no such channel),
              EMSGSIZE (the message is too long, or the read too short), EIO (not connected; the mount reconnects).
"""


def readme(settings: Mount, longest: int) -> str:
    """The text of the file for a mount with these settings."""
    return _TEXT.format(
        kept=settings.kept,
        line=settings.line,
        request=settings.request,
        listed=settings.listed,
        channels=settings.channels,
        longest=longest,
        message=settings.max_message,
        messages=settings.messages,
        bytes=settings.bytes,
    )
