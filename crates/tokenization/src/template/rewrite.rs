//! What of a template's source means something else to the library than to Python, written so that it means the same.
//!
//! - `a ~ b` becomes a call of [`CONCAT`], whose text is bounded and Python's.
//! - A list, tuple or object that the template builds becomes an argument of [`BUILT`], which visits it: a value that
//!   holds another one many times is paid for as often as that one is in it.
//! - `a == b`, `a < b`, `a in b` and their like become a call of [`COMPARED`], which is paid for by what it visits.
//! - A key of an object becomes an argument of [`KEY`], which visits it, as its hash does.
//! - `x.items` without a call becomes a call of a method, as in Python the method comes before a key of this name.
//! - A string with an escape that only Python knows is written without it.
//!
//! What cannot be written so, `autoescape` and arguments of macros that have no name, is refused.
//!
//! Nothing is written to another line, so that errors name the lines of the template.

mod strings;
mod walk;

use minijinja::{
    machinery::{
        Span, Token,
        ast::{BinOp, BinOpKind, CompareOpKind, Expr, Map, Spanned, Stmt},
        parse, tokenize,
    },
    syntax::SyntaxConfig,
};

use super::{TemplateError, describe};
use crate::python::{ATTRIBUTE, is_dict_method};
use strings::{Unescaped, literal, unescape};
use walk::{children, expressions};

pub(super) use walk::bodies;

/// Joins its arguments as `~` does.
pub(super) const CONCAT: &str = "__python_concat";

/// Returns its argument after it was visited.
pub(super) const BUILT: &str = "__python_built";

/// Compares its arguments by the operators between them.
pub(super) const COMPARED: &str = "__python_compared";

/// Returns its argument after it was visited.
pub(super) const KEY: &str = "__python_key";

/// Bytes of a template: the longest of published models have some ten thousand.
const MAX_SOURCE: usize = 1 << 20;

/// Tokens between `{{` and `}}`: each may be a level of the expression, and the stack is used for all levels.
const MAX_TOKENS: usize = 2048;

/// Largest number of branches of conditions, which are levels too.
const MAX_BRANCHES: usize = 500;

/// A token and the range of the source that it is made of.
struct Found<'a> {
    token: Token<'a>,
    start: usize,
    end: usize,
}

/// A change of the source.
#[derive(Debug)]
struct Edit {
    start: usize,
    end: usize,
    /// At one place calls end before others begin, and outer calls begin before inner ones.
    order: (u8, usize),
    text: String,
}

#[derive(Debug, Default)]
struct Edits(Vec<Edit>);

/// Finds the expressions that are rewritten.
struct Visitor<'a> {
    tokens: &'a [Found<'a>],
    source: &'a str,
    edits: Edits,
    /// Whether it is in the body of a macro.
    in_macro: bool,
    /// A construct that the library does not support or reads differently.
    unknown: Option<&'static str>,
}

/// The source with the meaning that it has in Python.
///
/// # Errors
/// [`TemplateError::Syntax`] when it cannot be parsed, is too long, or has a string that is known to Python alone.
pub(super) fn rewrite(source: &str, syntax: &SyntaxConfig) -> Result<String, TemplateError> {
    if source.len() > MAX_SOURCE {
        return Err(TemplateError::Syntax(format!(
            "it has more than {MAX_SOURCE} bytes"
        )));
    }
    let tokens = tokens(source, syntax)?;
    check_size(&tokens)?;
    let root = parse(source, super::NAME, syntax.clone())
        .map_err(|error| TemplateError::Syntax(describe(&error)))?;
    let mut visitor = Visitor {
        tokens: &tokens,
        source,
        edits: Edits::default(),
        in_macro: false,
        unknown: None,
    };
    visitor.statement(&root);
    if let Some(name) = visitor.unknown {
        let message = format!("{name} is known to the engine's renderer alone");
        return Err(TemplateError::Syntax(message));
    }
    let mut edits = visitor.edits;
    edit_attributes(&tokens, &mut edits);
    edit_strings(&tokens, source, &mut edits)?;
    Ok(edits.apply(source))
}

fn tokens<'a>(source: &'a str, syntax: &SyntaxConfig) -> Result<Vec<Found<'a>>, TemplateError> {
    let found = tokenize(source, false, syntax.clone()).map(|token| {
        let (token, span) = token.map_err(|error| TemplateError::Syntax(describe(&error)))?;
        let (start, end) = bounds(span);
        Ok(Found { token, start, end })
    });
    found.collect()
}

fn check_size(tokens: &[Found<'_>]) -> Result<(), TemplateError> {
    let mut in_tag = 0_usize;
    let mut branches = 0_usize;
    for found in tokens {
        match found.token {
            Token::VariableStart | Token::BlockStart => in_tag = 0,
            Token::Ident("elif") => branches += 1,
            _ => in_tag += 1,
        }
        let message = if in_tag > MAX_TOKENS {
            format!("an expression has more than {MAX_TOKENS} parts: set variables to some of them")
        } else if branches > MAX_BRANCHES {
            format!("it has more than {MAX_BRANCHES} branches of elif")
        } else {
            continue;
        };
        return Err(TemplateError::Syntax(message));
    }
    Ok(())
}

fn bounds(span: Span) -> (usize, usize) {
    let offset = |offset: u32| usize::try_from(offset).unwrap_or(usize::MAX);
    (offset(span.start_offset), offset(span.end_offset))
}

/// Rewrites `.items` where it is read, and neither called nor set.
fn edit_attributes(tokens: &[Found<'_>], edits: &mut Edits) {
    let mut is_target = false;
    for (index, window) in tokens.windows(2).enumerate() {
        let [before, found] = window else { continue };
        match (&before.token, &found.token) {
            (Token::BlockStart, Token::Ident("set")) => is_target = true,
            (_, Token::Assign | Token::BlockEnd) => is_target = false,
            (Token::Dot, Token::Ident(name)) if !is_target && is_dict_method(name) => {
                let next = tokens.get(index + 2).map(|next| &next.token);
                if !matches!(next, Some(Token::ParenOpen)) {
                    let text = format!("{ATTRIBUTE}{name}()");
                    edits.replace(found.start, found.end, text);
                }
            }
            _ => {}
        }
    }
}

fn edit_strings(
    tokens: &[Found<'_>],
    source: &str,
    edits: &mut Edits,
) -> Result<(), TemplateError> {
    for found in tokens {
        let read: &str = match &found.token {
            Token::Str(text) => text,
            Token::String(text) => text,
            _ => continue,
        };
        let Some(written) = source.get(found.start..found.end) else {
            continue;
        };
        if !written.contains('\\') {
            continue;
        }
        let mut inner = written.chars();
        inner.next();
        inner.next_back();
        match unescape(inner.as_str()) {
            Unescaped::Text(text) if text != read => {
                edits.replace(found.start, found.end, literal(&text));
            }
            Unescaped::Text(_) | Unescaped::Other => {}
            Unescaped::Name => {
                let message = r"\N{..} names a character: write it as \u or \U";
                return Err(TemplateError::Syntax(message.to_owned()));
            }
        }
    }
    Ok(())
}

/// Whether a binary operator compares values that may be large.
fn is_paid_for(operation: &BinOp<'_>) -> bool {
    // containers in constants are short, and compared to other values they are never walked further than that
    let is_constant = |expr: &Expr<'_>| expr.as_const().is_some();
    match operation.op {
        BinOpKind::Eq
        | BinOpKind::Ne
        | BinOpKind::Lt
        | BinOpKind::Lte
        | BinOpKind::Gt
        | BinOpKind::Gte => !is_constant(&operation.left) && !is_constant(&operation.right),
        // a value that is in no string must not become its text
        BinOpKind::In => match operation.right.as_const() {
            Some(right) => right.as_str().is_some() && !is_constant(&operation.left),
            None => !is_constant(&operation.left),
        },
        _ => false,
    }
}

// === impl Edits ===

impl Edits {
    fn replace(&mut self, start: usize, end: usize, text: String) {
        self.0.push(Edit {
            start,
            end,
            order: (2, 0),
            text,
        });
    }

    /// Puts a call around an expression.
    fn call(&mut self, (start, end): (usize, usize), open: &str, close: &str) {
        self.0.push(Edit {
            start,
            end: start,
            order: (1, usize::MAX - end),
            text: open.to_owned(),
        });
        self.0.push(Edit {
            start: end,
            end,
            order: (0, usize::MAX - start),
            text: close.to_owned(),
        });
    }

    fn apply(mut self, source: &str) -> String {
        self.0.sort_by_key(|edit| (edit.start, edit.order));
        let mut text = String::with_capacity(source.len() * 2);
        let mut from = 0;
        for edit in self.0 {
            text.push_str(source.get(from..edit.start).unwrap_or_default());
            text.push_str(&edit.text);
            from = edit.end;
        }
        text.push_str(source.get(from..).unwrap_or_default());
        text
    }
}

// === impl Visitor ===

impl Visitor<'_> {
    fn statement(&mut self, statement: &Stmt<'_>) {
        if matches!(statement, Stmt::AutoEscape(_)) {
            self.unknown = Some("autoescape");
        }
        let was_in_macro = self.in_macro;
        self.in_macro |= matches!(statement, Stmt::Macro(_) | Stmt::CallBlock(_));
        if let Stmt::Set(set) = statement
            && let Expr::Tuple(tuple) = &set.expr
            && set.expr.as_const().is_none()
        {
            self.tuple_of_set(tuple.span());
            for item in &tuple.items {
                self.expression(item);
            }
        } else {
            for expr in expressions(statement) {
                self.expression(expr);
            }
        }
        for body in bodies(statement) {
            for statement in body {
                self.statement(statement);
            }
        }
        self.in_macro = was_in_macro;
    }

    fn expression(&mut self, expr: &Expr<'_>) {
        match expr {
            Expr::BinOp(concat) if matches!(concat.op, BinOpKind::Concat) => {
                self.concat(concat);
                return;
            }
            Expr::Var(name) if self.in_macro && name.id == "varargs" => {
                self.unknown = Some("varargs");
            }
            Expr::Var(name) if self.in_macro && name.id == "kwargs" => {
                self.unknown = Some("kwargs");
            }
            Expr::List(list) if expr.as_const().is_none() => {
                self.built(list.span());
            }
            // constants too: the class of an object decides what a method returns
            Expr::Map(map) => {
                self.built(map.span());
                self.keys(map);
            }
            Expr::BinOp(comparison) if is_paid_for(comparison) => {
                self.compared(comparison.span());
            }
            Expr::Compare(chain) => {
                let is_constant = |expr: &Expr<'_>| expr.as_const().is_some();
                let text =
                    |op: &CompareOpKind| matches!(op, CompareOpKind::In | CompareOpKind::NotIn);
                // of each pair of neighbours one is a number or a text that costs nothing
                let mut operands = vec![&chain.expr];
                operands.extend(chain.ops.iter().map(|op| &op.expr));
                let is_cheap = |pair: &[&Expr<'_>]| pair.iter().any(|expr| is_constant(expr));
                if chain.ops.iter().any(|op| text(&op.op)) || !operands.windows(2).all(is_cheap) {
                    self.compared(chain.span());
                }
            }
            Expr::GetItem(access) if access.subscript_expr.as_const().is_none() => {
                self.subscript(access.span());
            }
            Expr::Tuple(tuple) if expr.as_const().is_none() => self.built(tuple.span()),
            _ => {}
        }
        for child in children(expr) {
            self.expression(child);
        }
    }

    /// Rewrites a chain of `a ~ b ~ c`, which is `(a ~ b) ~ c` and begins where `a` does.
    fn concat(&mut self, chain: &Spanned<BinOp<'_>>) {
        let (start, end) = bounds(chain.span());
        self.edits.call((start, end), &format!("{CONCAT}("), ")");
        let mut depth = 0_i32;
        let tokens = self.tokens;
        let first = tokens.partition_point(|found| found.start < start);
        for found in tokens.iter().skip(first) {
            if found.start >= end {
                break;
            }
            match found.token {
                Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
                Token::ParenClose | Token::BracketClose | Token::BraceClose => depth -= 1,
                Token::Tilde if depth == 0 => {
                    self.edits.replace(found.start, found.end, ",".to_owned());
                }
                _ => {}
            }
        }
        let mut link = chain;
        loop {
            self.expression(&link.right);
            match &link.left {
                Expr::BinOp(left)
                    if matches!(left.op, BinOpKind::Concat) && bounds(left.span()).0 == start =>
                {
                    link = left;
                }
                first => {
                    self.expression(first);
                    return;
                }
            }
        }
    }

    /// Rewrites a comparison, whose span begins at the token before it.
    fn compared(&mut self, span: Span) {
        let (before, end) = bounds(span);
        let tokens = self.tokens;
        let first = tokens.partition_point(|found| found.start <= before);
        let tokens = tokens.get(first..).unwrap_or_default();
        let tokens = tokens.split(|found| found.start >= end).next();
        let tokens = tokens.unwrap_or_default();
        let Some(start) = tokens.first().map(|found| found.start) else {
            return;
        };
        self.edits.call((start, end), &format!("{COMPARED}("), ")");
        let mut depth = 0_i32;
        // the name of an attribute, a filter or a test comes next
        let mut is_name = false;
        for (index, found) in tokens.iter().enumerate() {
            let was_name = std::mem::take(&mut is_name);
            let operator = match found.token {
                Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                    depth += 1;
                    continue;
                }
                Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                    depth -= 1;
                    continue;
                }
                _ if depth > 0 => continue,
                Token::Dot | Token::Pipe | Token::Ident("is") if !was_name => {
                    is_name = true;
                    continue;
                }
                Token::Ident("not") if was_name => {
                    // `is not`
                    is_name = true;
                    continue;
                }
                Token::Eq => "==",
                Token::Ne => "!=",
                Token::Lt => "<",
                Token::Lte => "<=",
                Token::Gt => ">",
                Token::Gte => ">=",
                Token::Ident("not") => "not in",
                Token::Ident("in") if !was_name => {
                    let previous = index.checked_sub(1).and_then(|index| tokens.get(index));
                    if previous.is_some_and(|found| matches!(found.token, Token::Ident("not"))) {
                        self.edits.replace(found.start, found.end, String::new());
                        continue;
                    }
                    "in"
                }
                _ => continue,
            };
            let text = format!(",\"{operator}\",");
            self.edits.replace(found.start, found.end, text);
        }
    }

    /// Pays for the key of a lookup; the span ends behind its bracket.
    fn subscript(&mut self, span: Span) {
        let (_, end) = bounds(span);
        let last = self.tokens.partition_point(|found| found.start < end);
        let mut depth = 0_i32;
        let mut close = None;
        for found in self.tokens.iter().take(last).rev() {
            match found.token {
                Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                    close = close.or(Some(found.start));
                    depth += 1;
                }
                Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                if let Some(close) = close {
                    self.edits.call((found.end, close), &format!("{KEY}("), ")");
                }
                return;
            }
        }
    }

    /// Pays for the keys of an object that are no constants.
    fn keys(&mut self, map: &Spanned<Map<'_>>) {
        let (start, _) = bounds(map.span());
        let first = self.tokens.partition_point(|found| found.start <= start);
        let mut keys = map.keys.iter();
        let mut key_start = None;
        let mut depth = 0_i32;
        let mut in_key = true;
        for found in self.tokens.iter().skip(first) {
            match found.token {
                Token::BraceClose if depth == 0 => return,
                Token::Colon if depth == 0 && in_key => {
                    in_key = false;
                    let is_constant = keys.next().is_none_or(|key| key.as_const().is_some());
                    if let Some(start) = key_start.take().filter(|_| !is_constant) {
                        self.edits
                            .call((start, found.start), &format!("{KEY}("), ")");
                    }
                    continue;
                }
                Token::Comma if depth == 0 => {
                    in_key = true;
                    continue;
                }
                Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth += 1,
                Token::ParenClose | Token::BracketClose | Token::BraceClose => depth -= 1,
                _ => {}
            }
            if in_key {
                key_start = key_start.or(Some(found.start));
            }
        }
    }

    /// Visits the tuple of a `set`. Without parentheses, its span begins at the second item: it begins behind the `=`.
    fn tuple_of_set(&mut self, span: Span) {
        let (start, end) = bounds(span);
        let first = self.tokens.partition_point(|found| found.start < start);
        let mut depth = 0_i32;
        for found in self.tokens.iter().take(first).rev() {
            match found.token {
                Token::ParenClose | Token::BracketClose | Token::BraceClose => depth += 1,
                Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => depth -= 1,
                Token::Assign if depth == 0 => {
                    self.edits
                        .call((found.end, end), &format!("{BUILT}(("), "))");
                    return;
                }
                _ => {}
            }
        }
    }

    fn built(&mut self, span: Span) {
        let (start, end) = bounds(span);
        let opens = |at: &str| at.starts_with(['[', '{', '(']);
        if self.source.get(start..end).is_some_and(opens) {
            // two pairs of parentheses, as a tuple may have none of its own
            self.edits.call((start, end), &format!("{BUILT}(("), "))");
        }
    }
}

#[cfg(test)]
mod tests;
