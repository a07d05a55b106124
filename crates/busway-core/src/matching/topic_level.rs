//! One level of the tree of topics in use: the topics below a path by their next segment.

use rustc_hash::FxHashMap;

/// Topics with the same next segment below a path.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// How many topics it has.
    pub topics: u64,
    /// How many messages were published on them since they are in use.
    pub messages: u64,
    /// The segment itself ends a topic.
    pub leaf: bool,
}

impl Branch {
    fn add(&mut self, messages: u64, leaf: bool) {
        self.topics += 1;
        self.messages += messages;
        self.leaf |= leaf;
    }
}

/// The topics below a path, by their next segment. The engine fills it in steps.
#[derive(Debug)]
pub struct TopicLevel {
    /// The path with a slash at its end; empty: all topics.
    path: Box<str>,
    /// Only segments that begin with this.
    begins: Box<str>,
    /// The largest number of branches.
    most: usize,
    /// Where the scan of the topic table goes on.
    pub next: usize,
    pub branches: FxHashMap<Box<str>, Branch>,
    /// Topics whose branches are beyond the largest number.
    pub others: Branch,
}

impl TopicLevel {
    pub fn new(path: &str, begins: &str, most: usize) -> Self {
        let path = if path.is_empty() { String::new() } else { format!("{path}/") };
        let (branches, others) = (FxHashMap::default(), Branch::default());
        Self { path: path.into(), begins: begins.into(), most, next: 0, branches, others }
    }

    pub fn add(&mut self, topic: &str, messages: u64) {
        let Some(below) = topic.strip_prefix(&*self.path).filter(|below| below.starts_with(&*self.begins)) else {
            return;
        };
        let (segment, leaf) = below.split_once('/').map_or((below, true), |(segment, _)| (segment, false));
        if let Some(branch) = self.branches.get_mut(segment) {
            branch.add(messages, leaf);
        } else if self.branches.len() < self.most {
            self.branches.entry(segment.into()).or_default().add(messages, leaf);
        } else {
            self.others.add(messages, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branches(level: &TopicLevel) -> Vec<(&str, Branch)> {
        let mut rows: Vec<_> = level.branches.iter().map(|(name, branch)| (&**name, *branch)).collect();
        rows.sort_unstable_by_key(|(name, _)| *name);
        rows
    }

    #[test]
    fn topics_are_grouped_by_their_next_segment() {
        let mut level = TopicLevel::new("a", "", 10);
        for (topic, messages) in [("a/b", 1), ("a/b/c", 2), ("a/b/d", 3), ("a", 4), ("ab/b", 5), ("a/x", 6)] {
            level.add(topic, messages);
        }
        let b = Branch { topics: 3, messages: 6, leaf: true };
        assert_eq!(branches(&level), [("b", b), ("x", Branch { topics: 1, messages: 6, leaf: true })]);
    }

    #[test]
    fn branches_beyond_the_limit_are_counted_together() {
        let mut level = TopicLevel::new("", "", 2);
        for (topic, messages) in [("a/1", 1), ("b", 2), ("c", 3), ("d/1", 4), ("a/2", 5)] {
            level.add(topic, messages);
        }
        assert_eq!(branches(&level)[0].1, Branch { topics: 2, messages: 6, leaf: false });
        assert_eq!(level.others, Branch { topics: 2, messages: 7, leaf: false });
    }

    #[test]
    fn only_segments_with_the_beginning_count() {
        let mut level = TopicLevel::new("", "ab", 10);
        for topic in ["abc/d", "ab", "a", "b"] {
            level.add(topic, 1);
        }
        assert_eq!(branches(&level).iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["ab", "abc"]);
    }
}
