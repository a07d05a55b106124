//! Selects the subscriptions of a topic whose rules match a message: a lookup by equalities, then the other rules.

use hashbrown::HashMap;

use crate::matching::index::{Index, Subscription};
use crate::matching::rules::{Outcome, Seen};
use crate::wire::msgpack::normal;

/// Subscriptions whose rules compare the same fields with values.
#[derive(Debug)]
struct Shape {
    names: Box<[Box<str>]>,
    /// By the values, each in normal form after its length.
    table: HashMap<Box<[u8]>, Vec<u32>>,
}

/// The subscriptions of one topic, by key.
#[derive(Debug, Default)]
pub struct Choice {
    /// Subscriptions without rules.
    free: Vec<u32>,
    /// Subscriptions whose rules have no equality.
    loose: Vec<u32>,
    shapes: Vec<Shape>,
}

/// Statistics of the evaluated rules.
#[derive(Debug, Default, Clone, Copy)]
pub struct Asked {
    pub errors: u64,
    pub steps: usize,
}

fn add(key: &mut Vec<u8>, value: &[u8]) {
    let value = normal(value);
    key.extend_from_slice(&(value.len() as u32).to_le_bytes());
    key.extend_from_slice(&value);
}

impl Choice {
    pub fn new(index: &Index, keys: &[u32]) -> Self {
        let mut choice = Self::default();
        for &key in keys {
            match index.rules(key) {
                None => choice.free.push(key),
                Some(rules) if rules.equalities().is_empty() => choice.loose.push(key),
                Some(rules) => {
                    let mut values = Vec::new();
                    for (_, value) in rules.equalities() {
                        add(&mut values, value);
                    }
                    let shape = choice.shape(rules.equalities());
                    shape.table.entry(values.into()).or_default().push(key);
                }
            }
        }
        choice
    }

    fn shape(&mut self, equalities: &[(Box<str>, Box<[u8]>)]) -> &mut Shape {
        let names = equalities.iter().map(|(name, _)| name);
        let same = |shape: &Shape| shape.names.iter().eq(names.clone());
        let at = self.shapes.iter().position(same).unwrap_or(self.shapes.len());
        if at == self.shapes.len() {
            self.shapes.push(Shape { names: names.cloned().collect(), table: HashMap::new() });
        }
        &mut self.shapes[at]
    }

    /// Adds the subscriptions that want this message to `out`.
    pub fn select(&self, index: &Index, seen: &Seen<'_>, out: &mut Vec<Subscription>) -> Asked {
        let mut asked = Asked::default();
        out.extend(self.free.iter().map(|&key| *index.get(key)));
        let mut ask = |key: u32| {
            let Some(rules) = index.rules(key) else { return };
            asked.steps += rules.weight();
            match rules.hold_rest(seen) {
                Outcome::Holds => out.push(*index.get(key)),
                Outcome::Fails => {}
                Outcome::Error => asked.errors += 1,
            }
        };
        self.loose.iter().for_each(|&key| ask(key));
        let mut values = Vec::with_capacity(64);
        for shape in &self.shapes {
            values.clear();
            let mut there = shape.names.iter().map(|name| seen.fields.get(name));
            if there.all(|value| value.map(|value| add(&mut values, value)).is_some()) {
                shape.table.get(&*values).into_iter().flatten().for_each(|&key| ask(key));
            }
        }
        asked
    }
}
