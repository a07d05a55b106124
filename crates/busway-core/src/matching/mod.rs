//! Matching of messages and subscriptions: `topic` is the grammar, `index` finds subscriptions by topic, with
//! `regex_index` for regular expressions; `rules` match fields, with `glob` and `cel`; `route` caches the result for a
//! topic. `grants` decide which topics a user may use, and `topic_level` is a report about topics in use.

pub(crate) mod cel;
pub(crate) mod glob;
pub mod grants;
pub mod index;
pub mod regex;
pub mod regex_index;
pub(crate) mod route;
pub(crate) mod rule_filter;
pub mod rules;
pub mod selection;
pub mod topic;
pub mod topic_level;
pub(crate) mod topic_table;
