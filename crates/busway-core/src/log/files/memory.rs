//! Files in memory: for memory streams, and for tests, which can cut the power.
//!
//! With `tracked`, unsynced data may be lost: a power cut keeps, drops or tears each such write at random, keeps only
//! the first changes of names, and keeps all synced data.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::log::files::{File, Files};

type Node = Arc<Mutex<Content>>;
type Names = BTreeMap<String, Node>;

#[derive(Debug, Default, Clone)]
struct Content {
    now: Vec<u8>,
    safe: Vec<u8>,
    /// Since the last sync: bytes written at a position, or (None) the file was cut there.
    since: Vec<(usize, Option<Vec<u8>>)>,
}

#[derive(Debug, Default)]
struct State {
    names: Names,
    /// The names after each change since their last sync, beginning with the synced ones.
    past: Vec<Names>,
    locked: bool,
    faults: Faults,
}

/// The simulated faults.
#[derive(Debug, Default, Clone, Copy)]
pub struct Faults {
    /// Bytes that can still be written.
    pub room: Option<usize>,
    /// Syncs of files fail, and their data is never synced.
    pub sync: bool,
    /// Calls until all calls fail.
    pub fuse: Option<usize>,
}

#[derive(Debug, Default, Clone)]
pub struct Simulated {
    state: Arc<Mutex<State>>,
    tracked: bool,
}

struct Handle {
    node: Node,
    all: Simulated,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if content.len() == at {
        return content.extend_from_slice(bytes);
    }
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The next pseudo-random number (splitmix64).
fn chance(seed: &mut u64) -> usize {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *seed;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (value ^ (value >> 31)) as usize >> 1
}

impl Simulated {
    pub fn new(tracked: bool) -> Self {
        let all = Self { tracked, ..Self::default() };
        held(&all.state).past.push(Names::new());
        all
    }

    pub fn set(&self, faults: Faults) {
        held(&self.state).faults = faults;
    }

    /// The contents after a power cut now, without faults.
    pub fn power_cut(&self, mut seed: u64) {
        let mut state = held(&self.state);
        let last = state.names.clone();
        state.past.push(last);
        let kept = chance(&mut seed) % state.past.len();
        state.names = state.past.swap_remove(kept);
        for node in state.names.values() {
            let mut content = held(node);
            let Content { now, safe, since } = &mut *content;
            now.clone_from(safe);
            for (at, bytes) in since.drain(..) {
                match (chance(&mut seed) % 3, bytes) {
                    (0, _) => {}
                    (_, None) => now.truncate(at),
                    (1, Some(bytes)) => put(now, at, &bytes),
                    (_, Some(bytes)) => {
                        let (a, b) = (chance(&mut seed) % (bytes.len() + 1), chance(&mut seed) % (bytes.len() + 1));
                        put(now, at + a.min(b), &bytes[a.min(b)..a.max(b)]);
                    }
                }
            }
            safe.clone_from(now);
        }
        state.past = vec![state.names.clone()];
        (state.locked, state.faults) = (false, Faults::default());
    }

    /// The contents for the next process after this one was killed: a copy of all written data.
    #[must_use]
    pub fn survivor(&self) -> Self {
        let state = held(&self.state);
        let mut known: Vec<(Node, Node)> = Vec::new();
        let mut copied = |node: &Node| {
            if let Some((_, copy)) = known.iter().find(|(old, _)| Arc::ptr_eq(old, node)) {
                return copy.clone(); // a file that had several names
            }
            let copy = Arc::new(Mutex::new(held(node).clone()));
            known.push((node.clone(), copy.clone()));
            copy
        };
        let mut all = |names: &Names| names.iter().map(|(name, node)| (name.clone(), copied(node))).collect();
        let (names, past) = (all(&state.names), state.past.iter().map(&mut all).collect());
        let state = State { names, past, locked: false, faults: state.faults };
        Self { state: Arc::new(Mutex::new(state)), tracked: self.tracked }
    }

    pub fn contents(&self) -> Vec<(String, Vec<u8>)> {
        held(&self.state).names.iter().map(|(name, node)| (name.clone(), held(node).now.clone())).collect()
    }

    /// Counts a call, which may fail from the `fuse` on.
    fn step(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = held(&self.state);
        match &mut state.faults.fuse {
            Some(0) => Err(io::Error::other("the power is off")),
            Some(left) => {
                *left -= 1;
                Ok(state)
            }
            None => Ok(state),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Names) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.step()?;
        if self.tracked {
            let before = state.names.clone();
            state.past.push(before);
        }
        change(&mut state.names)
    }

    fn handle(&self, node: Node) -> Arc<dyn File> {
        Arc::new(Handle { node, all: self.clone() })
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name} is not there"))
}

impl Files for Simulated {
    fn lock(&self) -> io::Result<bool> {
        Ok(!std::mem::replace(&mut self.step()?.locked, true))
    }

    fn unlock(&self) {
        held(&self.state).locked = false;
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.step()?.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let node = self.step()?.names.get(name).cloned();
        node.map(|node| self.handle(node)).ok_or_else(|| missing(name))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let node = Node::default();
        let of_name = node.clone();
        self.change(|names| {
            names.insert(name.into(), of_name);
            Ok(())
        })?;
        Ok(self.handle(node))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|names| {
            let node = names.remove(from).ok_or_else(|| missing(from))?;
            names.insert(to.into(), node);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|names| names.remove(name).map(|_| ()).ok_or_else(|| missing(name)))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.step()?;
        state.past = vec![state.names.clone()];
        Ok(())
    }
}

impl File for Handle {
    fn size(&self) -> io::Result<u64> {
        Ok(held(&self.node).now.len() as u64)
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        drop(self.all.step()?);
        let content = held(&self.node);
        let from = content.now.get(at as usize..).unwrap_or_default();
        let size = from.len().min(out.len());
        out[..size].copy_from_slice(&from[..size]);
        Ok(size)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut state = self.all.step()?;
        let size = state.faults.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        if let Some(room) = &mut state.faults.room {
            *room -= size;
        }
        drop(state);
        let mut content = held(&self.node);
        put(&mut content.now, at as usize, &bytes[..size]);
        if self.all.tracked {
            content.since.push((at as usize, Some(bytes[..size].to_vec())));
        }
        if size < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn cut(&self, size: u64) -> io::Result<()> {
        drop(self.all.step()?);
        let mut content = held(&self.node);
        content.now.truncate(size as usize);
        if self.all.tracked {
            content.since.push((size as usize, None));
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let fails = self.all.step()?.faults.sync;
        let mut content = held(&self.node);
        let Content { safe, since, .. } = &mut *content;
        let since = std::mem::take(since);
        if fails {
            return Err(io::Error::other("the disk did not take it"));
        }
        // Not all current data: a sync after a failed one does not include the data of the failed one.
        for (at, bytes) in since {
            match bytes {
                Some(bytes) => put(safe, at, &bytes),
                None => safe.truncate(at),
            }
        }
        Ok(())
    }
}
