//! CEL expressions over a message: compiled and checked once, evaluated with bounded cost. `rules` calls it.
//!
//! Values are borrowed by the interpreter on access, so an expression costs only what it reads. Expensive expressions
//! are refused at compilation (length, depth, nested loops, patterns that aren't literals), or end during evaluation (a
//! budget by the size of the values that they read).

use std::any::Any;
use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, SourceInfo};
use cel::common::types::{
    CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelTimestamp, CelUInt, Type,
    STRING_TYPE,
};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::context::VariableResolver;
use cel::parser::{ParseErrors, Parser};
use cel::{Context, Env, ExecutionError, Value};
use regex::{Regex, RegexBuilder};

use crate::matching::rules::{Outcome, Seen, REGEX_SIZE};
use crate::wire::msgpack::{head, next, Head};

/// The maximum length of an expression in bytes.
const LENGTH: usize = 4096;
/// The maximum nesting: brackets for the parser, operations for the interpreter.
const BRACKETS: u16 = 24;
const DEPTH: usize = 24;
/// The parser recurses for every operator of a chain, so it gets its own stack of this size.
const STACK: usize = 64 << 20;
/// The budget of an evaluation: bytes that it reads, times its size.
const BUDGET: usize = 32 << 20;
/// A list costs more than a text of as many bytes, and a regular expression more than other functions.
const PER_ITEM: usize = 16;
const PER_PATTERN: usize = 256;

const FUNCTIONS: &[&str] =
    &["bool", "bytes", "double", "duration", "dyn", "int", "matches", "size", "string", "timestamp", "type", "uint"];
const METHODS: &[&str] = &[
    "contains",
    "endsWith",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
    "matches",
    "size",
    "startsWith",
];
/// The name of the function that replaces `x.matches('...')`, called with the compiled expression. No user can write
/// it.
const MATCHES: &str = "@matches";

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    let pattern = Type::new_unspecified_type("pattern");
    env.add_overload(MATCHES, MATCHES, vec![STRING_TYPE, pattern], matches).expect("a name of its own");
    Arc::new(env)
});

/// The value that a rule's expression reads as `value`.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    None,
    Packed(&'a [u8]),
    Text(&'a str),
    Time(i64),
}

#[derive(Debug)]
pub struct Expression {
    root: IdedExpr,
    patterns: Vec<Pattern>,
    weight: usize,
}

impl Expression {
    /// Compiles an expression. `subject`: it has a field for `value`. The error begins with line and column.
    pub fn new(text: &str, subject: bool) -> Result<Self, String> {
        if text.len() > LENGTH {
            return Err(format!("the expression has {} bytes, {LENGTH} are allowed", text.len()));
        }
        let text = text.to_owned();
        let work = move || compile(&text, subject);
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
        let thread = thread.map_err(|error| format!("no thread to compile the expression: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("the expression can't be parsed".into()))
    }

    /// True if the expression matches a message. An absent field or key is no match, any other failure an error.
    pub fn holds(&self, seen: &Seen<'_>, subject: Subject<'_>) -> Outcome {
        let sight = Sight { seen, subject, program: self, spent: AtomicUsize::new(0) };
        let mut context = Context::with_env(Arc::clone(&ENV));
        context.set_variable_resolver(&sight);
        let run = || match Value::resolve_val(&self.root, &context) {
            Ok(value) => value.downcast_ref::<CelBool>().map_or(Outcome::Error, |yes| (*yes.inner()).into()),
            Err(ExecutionError::UndeclaredReference(_) | ExecutionError::NoSuchKey(_)) => Outcome::Fails,
            Err(_) => Outcome::Error,
        };
        let outcome = catch_unwind(AssertUnwindSafe(run)).unwrap_or(Outcome::Error);
        if sight.exhausted() {
            Outcome::Error
        } else {
            outcome
        }
    }
}

fn compile(text: &str, subject: bool) -> Result<Expression, String> {
    let parser = Parser::new().max_recursion_depth(BRACKETS);
    let (mut root, source) = parser.parse_with_source_info(text).map_err(|errors| explain(text, &errors))?;
    let mut check = Check { subject, patterns: Vec::new(), weight: 0 };
    let checked = check.node(&mut root, 0, false);
    checked.map_err(|(id, reason)| format!("{}: {reason}", place(text, &source, id)))?;
    Ok(Expression { root, patterns: check.patterns, weight: check.weight })
}

/// Returns the first error of the parser that has a position.
fn explain(text: &str, errors: &ParseErrors) -> String {
    let known = errors.errors.iter().find(|error| error.pos.0 > 0);
    let Some(error) = known.or(errors.errors.first()) else { return "line 1, column 1: no expression".into() };
    let at = match (&error.source_info, error.pos) {
        (_, (line @ 1.., column)) => format!("line {line}, column {column}"),
        (Some(source), _) => place(text, source, error.expr_id),
        _ => "line 1, column 1".into(),
    };
    let reason = if error.msg.contains("Recursion limit") {
        format!("nested deeper than {BRACKETS}")
    } else {
        // Leave out the list of expected tokens, which contains nearly all of them.
        let message = error.msg.split(" expecting {").next().unwrap_or_default();
        let message = message.trim_start_matches("Syntax error: ").replace("'<EOF>'", "end");
        message.replace("mismatched input", "unexpected").replace("extraneous input", "unexpected")
    };
    format!("{at}: {reason}")
}

fn place(text: &str, source: &SourceInfo, id: u64) -> String {
    let offset = source.offset_for(id).map_or(0, |(start, _)| start as usize);
    let before = text.get(..offset).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    format!("line {}, column {}", before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// Checks a parsed expression: refuses expensive ones, and computes the weight of the others.
struct Check {
    subject: bool,
    patterns: Vec<Pattern>,
    weight: usize,
}

impl Check {
    fn node(&mut self, node: &mut IdedExpr, depth: usize, looped: bool) -> Result<(), (u64, String)> {
        let id = node.id;
        let refuse = |reason: &str| Err((id, reason.to_owned()));
        if depth > DEPTH {
            return refuse(&format!("nested deeper than {DEPTH}"));
        }
        self.weight += 1;
        let depth = depth + 1;
        match &mut node.expr {
            Expr::Call(call) => {
                let name = call.func_name.as_str();
                let operator = !name.starts_with(|first: char| first.is_ascii_alphabetic());
                if !operator && call.target.is_none() && !FUNCTIONS.contains(&name) {
                    return refuse(&format!("there is no function {name}()"));
                }
                if call.target.is_some() && !METHODS.contains(&name) {
                    return refuse(&format!("there is no method .{name}()"));
                }
                if name == "matches" {
                    call.args.splice(0..0, call.target.take().map(|target| *target));
                    call.func_name = MATCHES.into();
                    let [_, pattern] = &mut call.args[..] else { return refuse("matches() takes one pattern") };
                    let Expr::Literal(LiteralValue::String(text)) = &pattern.expr else {
                        return refuse("matches() takes a pattern that is written out; a rule \"re\" takes any other");
                    };
                    let built = RegexBuilder::new(text.inner()).size_limit(REGEX_SIZE).build();
                    let built = built.map_err(|error| (pattern.id, error.to_string()))?;
                    pattern.expr = Expr::Ident(format!("@{}", self.patterns.len()));
                    self.patterns.push(Pattern(built));
                    self.weight += PER_PATTERN;
                    return self.node(&mut call.args[0], depth, looped);
                }
                self.nodes(call.target.as_deref_mut().into_iter().chain(&mut call.args), depth, looped)
            }
            Expr::Comprehension(_) if looped => {
                refuse("all(), exists(), exists_one(), map() and filter() can't be nested or follow one another")
            }
            Expr::Comprehension(fold) => {
                let fold = &mut **fold;
                let parts = [&mut fold.iter_range, &mut fold.accu_init, &mut fold.loop_cond, &mut fold.loop_step];
                self.nodes(parts.into_iter().chain([&mut fold.result]), depth, true)
            }
            Expr::Ident(name) if name == "value" && !self.subject => {
                refuse("value is the field that a rule is for; name one, or write fields.name")
            }
            Expr::Ident(_) | Expr::Literal(_) => Ok(()),
            Expr::Select(select) => self.node(&mut select.operand, depth, looped),
            Expr::List(list) => self.nodes(&mut list.elements, depth, looped),
            Expr::Map(map) => map.entries.iter_mut().try_for_each(|entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => self.nodes([&mut entry.key, &mut entry.value], depth, looped),
                EntryExpr::StructField(_) => refuse("there are no structs"),
            }),
            Expr::Struct(_) | Expr::Unspecified => refuse("there are no structs"),
        }
    }

    fn nodes<'n>(
        &mut self,
        nodes: impl IntoIterator<Item = &'n mut IdedExpr>,
        depth: usize,
        looped: bool,
    ) -> Result<(), (u64, String)> {
        nodes.into_iter().try_for_each(|node| self.node(node, depth, looped))
    }
}

/// The variables of an expression for a message, created on access.
struct Sight<'a> {
    seen: &'a Seen<'a>,
    subject: Subject<'a>,
    program: &'a Expression,
    spent: AtomicUsize,
}

impl Sight<'_> {
    fn exhausted(&self) -> bool {
        self.spent.load(Relaxed).saturating_mul(self.program.weight) > BUDGET
    }

    /// Spends budget for this many bytes; None: the budget is used up.
    fn spend(&self, size: usize) -> Option<()> {
        self.spent.fetch_add(size, Relaxed);
        (!self.exhausted()).then_some(())
    }

    fn packed<'b>(&'b self, value: &'b [u8]) -> Option<CowVal<'b, 'b>> {
        let items = matches!(head(value), Some((Head::List(_) | Head::Map(_), _)));
        self.spend(value.len() * if items { PER_ITEM } else { 1 })?;
        Some(CowVal::Owned(lend(value)))
    }

    fn text<'b>(&'b self, text: &'b str) -> Option<CowVal<'b, 'b>> {
        self.spend(text.len())?;
        Some(CowVal::owned(CelString::from(text)))
    }

    fn fields(&self) -> Option<CowVal<'_, '_>> {
        let fields = self.seen.fields;
        self.spend(PER_ITEM * fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>())?;
        let map: HashMap<_, _> = fields.iter().map(|(name, value)| (CelMapKey::from(name), lend(value))).collect();
        Some(CowVal::owned(CelMap::from(map)))
    }
}

impl VariableResolver for Sight<'_> {
    fn resolve<'b>(&'b self, name: &str) -> Option<CowVal<'b, 'b>> {
        let seen = self.seen;
        match name {
            "value" => match self.subject {
                Subject::None => None,
                Subject::Packed(value) => self.packed(value),
                Subject::Text(text) => self.text(text),
                Subject::Time(time) => Some(CowVal::owned(CelInt::from(time))),
            },
            "fields" => self.fields(),
            "topic" => self.text(seen.topic),
            "sender" => Some(CowVal::owned(CelString::from(seen.sender_name()))),
            "time" => {
                let time = chrono::DateTime::from_timestamp_nanos(seen.time).fixed_offset();
                Some(CowVal::owned(CelTimestamp::from(time)))
            }
            "payload" => {
                self.spend(seen.payload.len())?;
                Some(CowVal::owned(CelBytes::from(seen.payload)))
            }
            "text" => self.text(std::str::from_utf8(seen.payload).ok()?),
            _ => {
                if let Some(number) = name.strip_prefix('@') {
                    let pattern = self.program.patterns.get(number.parse::<usize>().ok()?)?;
                    return Some(CowVal::Borrowed(pattern));
                }
                // Look up `fields.name` first, which avoids a map of all fields.
                let field = name.strip_prefix("fields.").and_then(|name| seen.fields.get(name));
                self.packed(field.or_else(|| seen.fields.get(name))?)
            }
        }
    }
}

/// Converts the value of a field for the interpreter; texts and bytes are borrowed.
fn lend(value: &[u8]) -> Box<dyn Val + '_> {
    let Some((head, mut rest)) = head(value) else { return Box::new(CelNull) };
    match head {
        Head::Nil => Box::new(CelNull),
        Head::Bool(yes) => Box::new(CelBool::from(yes)),
        Head::Uint(number) => match i64::try_from(number) {
            Ok(number) => Box::new(CelInt::from(number)),
            Err(_) => Box::new(CelUInt::from(number)),
        },
        Head::Int(number) => Box::new(CelInt::from(number)),
        Head::Float(number) => Box::new(CelDouble::from(number)),
        Head::Str(_) => Box::new(CelString::from(std::str::from_utf8(rest).unwrap_or_default())),
        Head::Bin(_) => Box::new(CelBytes::from(rest)),
        Head::List(size) => {
            let item = |_| {
                let (item, after) = next(rest);
                rest = after;
                lend(item)
            };
            Box::new(CelList::from((0..size).map(item).collect::<Vec<_>>()))
        }
        Head::Map(size) => {
            let item = |_| {
                let (key, after) = next(rest);
                let (item, after) = next(after);
                rest = after;
                (CelMapKey::from(crate::wire::msgpack::text(key).unwrap_or_default()), lend(item))
            };
            Box::new(CelMap::from((0..size).map(item).collect::<HashMap<_, _>>()))
        }
    }
}

/// A compiled regular expression as a value, for a function call.
#[derive(Debug, Clone)]
struct Pattern(Regex);

impl Val for Pattern {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        static TYPE: Type = Type::new_unspecified_type("pattern");
        &TYPE
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Pattern {}

/// The interpreter passes the arguments of the overload by value.
#[allow(clippy::needless_pass_by_value)]
fn matches<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    match (args[0].downcast_ref::<CelString>(), args[1].downcast_ref::<Pattern>()) {
        (Some(text), Some(Pattern(pattern))) => Ok(CowVal::owned(CelBool::from(pattern.is_match(text.inner())))),
        _ => Err(ExecutionError::no_such_overload("matches", Vec::new())),
    }
}
