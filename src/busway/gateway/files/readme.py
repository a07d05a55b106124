"""The file `README` of a mount: what each file is for, and what it is limited to. Values only."""

from typing import Final

from busway.gateway.files.config import Mount

_TEXT: Final = """\
A Busway message bus as files. Everything that can open, read, write and poll a file is a client of it.

topics/       A file for each topic. It grows by a line for each message; each line that is written is a message.
                  touch topics/price; tail -f topics/price &
                  echo 3012.5 > topics/price
              cat prints what has come since the file was first used, the last {kept} bytes of it. Opened for reading and
              writing (exec 3<>topics/price) it begins with what comes next, and a read waits for that.
              A file is there once the topic is used here: touch topics/price makes it, and from then on it is followed.
              A topic with slashes lies in folders: mkdir -p topics/price && echo 1 > topics/price/eth. Or write %2F: a name
              with %XX is always there, and always a topic's: tail -f topics/price%2Feth needs neither folder nor touch,
              and %70rice is the topic price where price is a folder. rm and rmdir remove what is listed.
              * in a name stands for one fragment, ** for any number: cat 'topics/**'. Names over 255 bytes are not listed.
              A write is taken as a whole or not at all (EMSGSIZE: a line over {line} bytes; json/: EINVAL, a line that is none).
json/         The same topics; each line is an object with topic, payload, time, sender and fields. Objects with payload
              and fields can be written: echo '{{"payload": "1", "fields": {{"venue": "krk"}}}}' > json/price
services/     A file for each service, made in the same ways: write a request and read the reply on the same open file.
                  exec 3<>services/sum; echo '[1,2]' >&3; cat <&3
              Nobody there: EHOSTUNREACH. No answer within {request:g} s: ETIMEDOUT. The service failed: EIO.
streams/      A folder for each stream, and in it a file for each stored message, named by its offset. The newest {listed}
              are listed; all can be read.

Extended attributes (getfattr -d FILE): user.busway.field.NAME are the fields of a stored message; set on the file of
a topic they are those of what is published through it: setfattr -n user.busway.field.venue -v krk topics/price

channels      The channels of the two-file protocol: a name in each line, whose number is that of its line, from 0.
              Names that are appended are registered, {channels} at most, of {longest} bytes at most. A channel is a topic.
fusebus       Each open file is a client. Numbers are unsigned, 64 bits, in the order of the machine. Write
                  0, regular expression     subscribe to channels whose whole name it matches, or to the channel of this
                                            name; returns the number of the subscription. NULs at the end are padding: a
                                            number that is larger than the write is long can't be returned (ENOSPC).
                  1, subscription           unsubscribe
                  2, channel, payload       publish, {message} bytes at most
              Read the first messages that were not received yet, whole ones, as many as fit. Each is
                  channel, serial number, client, size, stride; then the payload, padded to stride (a multiple of 16)
              A read waits if there is nothing (O_NONBLOCK: EAGAIN); select, poll and epoll tell when there is.
              A new client begins with the oldest message. {messages} messages or {bytes} bytes are kept; who is slower
              misses some, which shows in the serial numbers and is counted: getfattr -n user.busway.lost fusebus
              A client of 2**63 or more is one that publishes to the bus itself. Messages carry the fields serno and client there.
              Errors: EINVAL (no such type, a bad expression), ENOENT (no such subscription), ENXIO (no such channel),
              EMSGSIZE (too long to be written, or for what is to be read into), EIO (the bus is gone; it is tried again).
"""


def readme(settings: Mount, longest: int) -> str:
    """The text for a mount with these settings."""
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
