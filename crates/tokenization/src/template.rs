//! Chat templates: Jinja as the renderer of Python runs it.

mod content;
#[cfg(test)]
mod tests;

use std::{error::Error as _, fmt, io, sync::Arc};

use jiff::civil::DateTime;
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, ValueKind},
};

use crate::{json::Map, python};

/// Bytes that a template may write: four times the largest prompt.
const MAX_OUTPUT: usize = 64 << 20;

/// Steps and 64-byte pieces of data: an output of 64 MiB takes a million, ten thousand messages of some hundred steps
/// each another million or two. What asks for far more does not end soon.
const FUEL: u64 = 8_000_000;

/// The name under which the one template of an environment is known.
const NAME: &str = "chat_template";

/// A template of one model, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    env: Arc<Environment<'static>>,
    iterates_content: bool,
    /// It may join values by `~`, which writes numbers in its own way.
    joins: bool,
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
    #[error("the chat template takes too long, or writes more than {} MiB", MAX_OUTPUT >> 20)]
    TooMuch,
}

/// What `raise_exception` was called with.
#[derive(Debug)]
struct Raised(String);

/// Takes at most [`MAX_OUTPUT`] bytes.
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
        let joins = source.contains('~');
        let iterates_content = content::is_iterated(&source, syntax.clone());
        let mut env = Environment::new();
        env.set_syntax(syntax);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_unknown_method_callback(python::method);
        env.set_fuel(Some(FUEL));
        env.set_formatter(|out, _, value| match value.kind() {
            ValueKind::Undefined => Ok(()),
            ValueKind::String => write(out, value.as_str().unwrap_or_default()),
            _ => write(out, &python::str(value)),
        });
        env.add_filter("tojson", tojson);
        env.add_filter("string", |value: &Value| python::str(value));
        env.add_function("raise_exception", raise_exception);
        env.add_template_owned(NAME, source).map_err(syntax_error)?;
        Ok(Self {
            env: Arc::new(env),
            iterates_content,
            joins,
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
        if self.joins && variables.values().any(python::has_exponent) {
            return Err(TemplateError::Failed(
                "it joins values, and one is a number with an exponent".to_owned(),
            ));
        }
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
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    python::Dumps::new(ensure_ascii, indent, &kwargs)?.dump(value)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let text = python::str(message);
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
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{what} (line {line} of the template)"),
        None => what,
    }
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
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
