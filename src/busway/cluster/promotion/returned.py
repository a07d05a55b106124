"""A node that returns after another one was promoted: its start sets aside the records that only it has.

The server calls `settle` before it opens the data folder's streams. A stream without such records becomes a copy, which
follows the new owner. A node that lost its own streams gets a new guid, since the old one stands for the streams.
"""

import logging
import shutil
from pathlib import Path

from busway.broker.storage.data_folder import CHANNELS
from busway.broker.storage.permissions import make_folder
from busway.broker.streams import set_aside
from busway.broker.streams.folder import LOG, read, write
from busway.broker.streams.manager import FOLDER as STREAMS
from busway.cluster.promotion.owners import Owner, Owners
from busway.cluster.promotion.owners_file import Content, OwnersFile
from busway.cluster.replication import copies, known_mirrors
from busway.cluster.replication.compare import Records, mark_at
from busway.cluster.replication.messages import Have
from busway.common import environment
from busway.errors import DataFailed

log = logging.getLogger("busway.cluster")


def settle(root: Path, guid: str) -> str:
    """Give up what other nodes own now. Returns the guid of the node from now on."""
    file = OwnersFile(root)
    content = file.load()
    owners = Owners(guid, content.owners)
    lost = [part for part in (guid, *content.held) if owners.get(part).owner != guid]
    try:
        for part in lost:
            _give_up(root, part, owners.get(part), own=part == guid)
        if guid in lost:
            (root / known_mirrors.FILE).unlink(missing_ok=True)  # mirrors of the streams that it has no longer
            guid = f"{environment.randbits(128):032x}"
    except OSError as error:
        raise DataFailed(f"can't set aside the streams that another node owns now: {error}") from error
    if lost:
        held = [part for part in content.held if part not in lost]
        file.save(Content(content.owners, held))
    return guid


def _give_up(root: Path, part: str, owner: Owner, *, own: bool) -> None:
    source, copied = root / STREAMS if own else root / copies.FOLDER / part, root / copies.FOLDER / part
    make_folder(copied)  # shows that this node is to have copies
    for folder in sorted(path for path in source.iterdir() if path.is_dir() and not path.name.startswith(".")):
        config = read(folder)
        if config is None or config.store == "memory" or config.in_database:
            continue
        records = set_aside.open_records(folder, config)
        first, following = unshared(records, owner.ends.get(config.name)), records.next
        records.close()
        if first < following:
            place = set_aside.put(root, folder, config, part, first, following)
            log.warning(
                "stream %r: node %s owns it since epoch %d, and %d records that only this node had are set aside"
                " in %s: see 'busway stream recover'",
                *(config.name, owner.owner[:8], owner.epoch, following - first, place),
            )
        elif own:
            shutil.rmtree(folder / CHANNELS, ignore_errors=True)  # the owner's progress counts
            environment.drop_log(folder / CHANNELS)
            folder.rename(copied / config.name)
            environment.move_log(folder / LOG, copied / config.name / LOG)
        if own:
            make_folder(folder)
            write(folder, config)  # an empty stream for new messages


def unshared(records: Records, theirs: Have | None) -> int:
    """The offset of the first record that the owner does not have. If the two differ, that is the first one of all."""
    first, following = records.first, records.next
    if theirs is None:
        return first
    differ = first < theirs.next <= following and mark_at(records, theirs.next - 1) != theirs.mark
    return first if differ else min(max(theirs.next, first), following)
