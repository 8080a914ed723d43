//! Chat templates: Jinja as the renderer of Python runs it.

mod content;
mod filters;
mod rewrite;
#[cfg(test)]
mod tests;

use std::{error::Error as _, fmt, io, sync::Arc};

use jiff::civil::DateTime;
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, ValueKind},
};

use crate::{
    json::Map,
    python::{self, MAX_TEXT},
};

/// Steps and 64-byte pieces of data, or 16-byte pieces of values that are written: an output of 16 MiB takes a million,
/// ten thousand messages of some hundred steps each another million or two. A template that needs far more does not end
/// soon.
const FUEL: u64 = 8_000_000;

/// Longest message, in bytes: clients see it, and it may repeat what they sent.
const MAX_MESSAGE: usize = 2048;

/// The name under which the one template of an environment is known.
const NAME: &str = "chat_template";

/// A template of one model, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    env: Arc<Environment<'static>>,
    iterates_content: bool,
}

/// Why a template gives no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    /// It cannot be compiled: the model's fault.
    #[error("the chat template cannot be compiled: {0}")]
    Syntax(String),
    /// It called `raise_exception`, and this is what it says.
    #[error("{0}")]
    Raised(String),
    /// It does not know what to do with this conversation.
    #[error("the chat template fails: {0}")]
    Failed(String),
    /// It wrote too much, or ran for too long.
    #[error(
        "the chat template takes too long, or writes more than {} MiB: send fewer messages, or smaller tools",
        MAX_TEXT >> 20
    )]
    TooMuch,
}

/// What `raise_exception` was called with.
#[derive(Debug)]
struct Raised(String);

/// A buffer that accepts at most [`MAX_TEXT`] bytes.
#[derive(Debug, Default)]
struct BoundedText(Vec<u8>);

// === impl Template ===

impl Template {
    /// Compiles one.
    pub(crate) fn new(source: &str) -> Result<Self, TemplateError> {
        let syntax_error = |error: Error| TemplateError::Syntax(describe(&error));
        let source = without_generation_tags(source);
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(syntax_error)?;
        let rewritten = rewrite::rewrite(&source, &syntax)?;
        let iterates_content = content::is_iterated(&source, syntax.clone());
        let mut env = Environment::new();
        env.set_syntax(syntax);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_unknown_method_callback(python::method);
        env.set_fuel(Some(FUEL));
        env.set_formatter(|out, state, value| match value.kind() {
            ValueKind::Undefined => Ok(()),
            ValueKind::String => write(out, value.as_str().unwrap_or_default()),
            _ => {
                let state: &State<'_, '_> = state;
                write(out, &python::str(value, state)?)
            }
        });
        filters::register(&mut env);
        env.add_filter("tojson", tojson);
        env.add_function("raise_exception", raise_exception);
        env.add_template_owned(NAME, rewritten)
            .map_err(syntax_error)?;
        Ok(Self {
            env: Arc::new(env),
            iterates_content,
        })
    }

    /// Whether it goes through the parts of a message's content, so that it must be a list.
    pub(crate) fn iterates_content(&self) -> bool {
        self.iterates_content
    }

    /// Runs it over these variables.
    pub(crate) fn render(
        &self,
        mut variables: Map,
        now: DateTime,
    ) -> Result<String, TemplateError> {
        let strftime = Value::from_function(move |format: &str| {
            jiff::fmt::strtime::format(format, now)
                .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        variables.insert("strftime_now".into(), strftime);
        let mut text = BoundedText::default();
        let template = self.env.get_template(NAME).map_err(render_error)?;
        template
            .render_captured_to(Value::from_object(variables), &mut text)
            .map_err(render_error)?;
        // a template writes strings only
        Ok(String::from_utf8(text.0).unwrap_or_default())
    }
}

fn write(out: &mut minijinja::Output<'_>, text: &str) -> Result<(), Error> {
    out.write_str(text)
        .map_err(|_| Error::from(ErrorKind::WriteFailure))
}

fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    python::Dumps::new(ensure_ascii, indent, &kwargs)?.dump(value, state)
}

fn raise_exception(state: &State<'_, '_>, message: &Value) -> Result<Value, Error> {
    let text = python::str_cut(message, state, MAX_MESSAGE)?;
    let error = Error::new(ErrorKind::InvalidOperation, "raised by the template");
    Err(error.with_source(Raised(text)))
}

/// The renderer of Python marks what the assistant wrote by tags of its own. They write nothing, and are a scope.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        text.push_str(before);
        text.push_str("{%");
        rest = tag;
        let inner = tag.strip_prefix(['-', '+']).unwrap_or(tag).trim_start();
        let names = [("generation", "with"), ("endgeneration", "endwith")];
        for (name, same) in names {
            let Some(after) = inner.strip_prefix(name) else {
                continue;
            };
            let end = after.trim_start();
            if end.starts_with("%}") || end.starts_with("-%}") || end.starts_with("+%}") {
                let start = tag.len().saturating_sub(inner.len());
                text.push_str(tag.get(..start).unwrap_or_default());
                text.push_str(same);
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

fn render_error(error: Error) -> TemplateError {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(Raised(text)) = cause.downcast_ref() {
            return TemplateError::Raised(text.clone());
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => TemplateError::TooMuch,
        _ => TemplateError::Failed(describe(&error)),
    }
}

/// What is wrong, and where; without the source code around it.
fn describe(error: &Error) -> String {
    let what = match error.detail() {
        Some(detail) => format!("{}: {}", error.kind(), cut(detail)),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{what} (line {line} of the template)"),
        None => what,
    }
}

/// The beginning of a message.
fn cut(message: &str) -> &str {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    message.get(..end).unwrap_or_default()
}

// === impl Raised ===

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

// === impl BoundedText ===

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
