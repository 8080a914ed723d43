//! What of a template's source means something else to the library than to Python, written so that it means the same.
//!
//! - `a ~ b` becomes a call of [`CONCAT`], whose text is bounded and Python's.
//! - A list, tuple or object that the template builds becomes an argument of [`BUILT`], which visits it: a value that
//!   holds another one many times is paid for as often as that one is in it.
//! - `x.items` without a call becomes a call of a method, as in Python the method comes before a key of this name.
//! - A string with an escape that only Python knows is written without it.
//!
//! Nothing is written to another line, so that errors name the lines of the template.

use minijinja::{
    machinery::{
        Span, Token,
        ast::{BinOp, BinOpKind, CallArg, Expr, Spanned, Stmt},
        parse, tokenize,
    },
    syntax::SyntaxConfig,
};

use super::{TemplateError, describe};
use crate::python::{ATTRIBUTE, is_dict_method};

/// Joins its arguments as `~` does.
pub(super) const CONCAT: &str = "__python_concat";

/// Gives its argument back once it is visited.
pub(super) const BUILT: &str = "__python_built";

/// Bytes of a template: the longest of published models have some ten thousand.
const MAX_SOURCE: usize = 1 << 20;

/// Tokens between `{{` and `}}`: each may be a level of the expression, and the stack is used for all levels.
const MAX_TOKENS: usize = 2048;

/// Branches of conditions, which are levels too.
const MAX_BRANCHES: usize = 500;

/// A token and the bytes of the source that it is made of.
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
    };
    visitor.statement(&root);
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

/// `.items` where it is read, and neither called nor set.
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

/// What Python makes of the inside of a string.
enum Unescaped {
    Text(String),
    /// It has a character by its name.
    Name,
    /// No string of Unicode.
    Other,
}

fn unescape(inner: &str) -> Unescaped {
    let mut text = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        let Some(escape) = characters.next() else {
            return Unescaped::Other;
        };
        let mut coded = |digits: usize, radix: u32| {
            let rest = characters.as_str();
            let len = rest
                .chars()
                .take(digits)
                .take_while(|digit| digit.is_digit(radix))
                .count();
            let (code, after) = rest.split_at_checked(len)?;
            characters = after.chars();
            let code = u32::from_str_radix(code, radix).ok();
            code.and_then(char::from_u32).map(|code| (code, len))
        };
        let exact = |coded: Option<(char, usize)>, digits: usize| {
            coded
                .filter(|(_, len)| *len == digits)
                .map(|(code, _)| code)
        };
        let found = match escape {
            '\n' => continue,
            '\\' | '\'' | '"' => Some(escape),
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            'x' => exact(coded(2, 16), 2),
            'u' => exact(coded(4, 16), 4),
            'U' => exact(coded(8, 16), 8),
            'N' => return Unescaped::Name,
            '0'..='7' => {
                let first = escape.to_digit(8).unwrap_or_default();
                let rest = coded(2, 8);
                let code = match rest {
                    Some((code, len)) => first * if len == 1 { 8 } else { 64 } + u32::from(code),
                    None => first,
                };
                char::from_u32(code)
            }
            _ => {
                text.push('\\');
                Some(escape)
            }
        };
        match found {
            Some(found) => text.push(found),
            None => return Unescaped::Other,
        }
    }
    Unescaped::Text(text)
}

/// A string as the library reads it.
fn literal(text: &str) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for character in text.chars() {
        match character {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            '\n' => literal.push_str("\\n"),
            '\r' => literal.push_str("\\r"),
            _ => literal.push(character),
        }
    }
    literal.push('"');
    literal
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
        for expr in expressions(statement) {
            self.expression(expr);
        }
        for body in bodies(statement) {
            for statement in body {
                self.statement(statement);
            }
        }
    }

    fn expression(&mut self, expr: &Expr<'_>) {
        match expr {
            Expr::BinOp(concat) if matches!(concat.op, BinOpKind::Concat) => {
                self.concat(concat);
                return;
            }
            Expr::List(list) if expr.as_const().is_none() => {
                self.built(list.span());
            }
            // also of constants: a method of an object is read by its class
            Expr::Map(map) => self.built(map.span()),
            Expr::Tuple(tuple) if expr.as_const().is_none() => self.built(tuple.span()),
            _ => {}
        }
        for child in children(expr) {
            self.expression(child);
        }
    }

    /// A chain of `a ~ b ~ c`, which is `(a ~ b) ~ c` with the beginning of `a`.
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

    fn built(&mut self, span: Span) {
        let (start, end) = bounds(span);
        let opens = |at: &str| at.starts_with(['[', '{', '(']);
        if self.source.get(start..end).is_some_and(opens) {
            // twice, as a tuple may have no parentheses of its own
            self.edits.call((start, end), &format!("{BUILT}(("), "))");
        }
    }
}

/// The expressions of a statement itself.
fn expressions<'a>(statement: &'a Stmt<'a>) -> Vec<&'a Expr<'a>> {
    match statement {
        Stmt::EmitExpr(emit) => vec![&emit.expr],
        Stmt::ForLoop(found) => {
            let filter = found.filter_expr.as_ref();
            std::iter::once(&found.iter).chain(filter).collect()
        }
        Stmt::IfCond(condition) => vec![&condition.expr],
        Stmt::WithBlock(with) => with.assignments.iter().map(|(_, value)| value).collect(),
        Stmt::Set(set) => vec![&set.expr],
        Stmt::SetBlock(set) => set.filter.iter().collect(),
        Stmt::AutoEscape(block) => vec![&block.enabled],
        Stmt::FilterBlock(block) => vec![&block.filter],
        Stmt::Macro(block) => block.defaults.iter().collect(),
        Stmt::CallBlock(block) => {
            let defaults = &block.macro_decl.defaults;
            arguments(&block.call.args).chain(defaults).collect()
        }
        Stmt::Do(call) => arguments(&call.call.args).collect(),
        _ => Vec::new(),
    }
}

/// The statements within a statement.
pub(super) fn bodies<'a>(statement: &'a Stmt<'a>) -> Vec<&'a [Stmt<'a>]> {
    match statement {
        Stmt::Template(template) => vec![&template.children],
        Stmt::ForLoop(found) => vec![&found.body, &found.else_body],
        Stmt::IfCond(condition) => vec![&condition.true_body, &condition.false_body],
        Stmt::WithBlock(with) => vec![&with.body],
        Stmt::SetBlock(set) => vec![&set.body],
        Stmt::AutoEscape(block) => vec![&block.body],
        Stmt::FilterBlock(block) => vec![&block.body],
        Stmt::Block(block) => vec![&block.body],
        Stmt::Macro(block) => vec![&block.body],
        Stmt::CallBlock(block) => vec![&block.macro_decl.body],
        _ => Vec::new(),
    }
}

fn children<'a>(expr: &'a Expr<'a>) -> Vec<&'a Expr<'a>> {
    match expr {
        Expr::Var(_) | Expr::Const(_) => Vec::new(),
        Expr::Slice(slice) => {
            let bounds = [&slice.start, &slice.stop, &slice.step];
            let bounds = bounds.into_iter().flatten();
            std::iter::once(&slice.expr).chain(bounds).collect()
        }
        Expr::UnaryOp(operation) => vec![&operation.expr],
        Expr::BinOp(operation) => vec![&operation.left, &operation.right],
        Expr::Compare(compare) => {
            let others = compare.ops.iter().map(|operation| &operation.expr);
            std::iter::once(&compare.expr).chain(others).collect()
        }
        Expr::IfExpr(condition) => {
            let other = condition.false_expr.as_ref();
            let both = [&condition.test_expr, &condition.true_expr];
            both.into_iter().chain(other).collect()
        }
        Expr::Filter(filter) => {
            let of = filter.expr.iter();
            of.chain(arguments(&filter.args)).collect()
        }
        Expr::Test(test) => {
            let of = std::iter::once(&test.expr);
            of.chain(arguments(&test.args)).collect()
        }
        Expr::GetAttr(access) => vec![&access.expr],
        Expr::GetItem(access) => vec![&access.expr, &access.subscript_expr],
        Expr::Call(call) => {
            let of = std::iter::once(&call.expr);
            of.chain(arguments(&call.args)).collect()
        }
        Expr::List(list) => list.items.iter().collect(),
        Expr::Tuple(tuple) => tuple.items.iter().collect(),
        Expr::Map(map) => map.keys.iter().chain(&map.values).collect(),
    }
}

fn arguments<'a>(arguments: &'a [CallArg<'a>]) -> impl Iterator<Item = &'a Expr<'a>> {
    arguments.iter().map(|argument| match argument {
        CallArg::Pos(expr)
        | CallArg::Kwarg(_, expr)
        | CallArg::PosSplat(expr)
        | CallArg::KwargSplat(expr) => expr,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn rewritten(source: &str) -> String {
        let source = format!("{{{{ {source} }}}}");
        let text = rewrite(&source, &SyntaxConfig::default()).unwrap();
        let text = text
            .replace(CONCAT, "J")
            .replace(BUILT, "B")
            .replace(ATTRIBUTE, "P");
        text.trim_start_matches("{{ ")
            .trim_end_matches(" }}")
            .to_owned()
    }

    #[rstest]
    #[case("a ~ b", "J(a , b)")]
    #[case("a ~ b ~ c", "J(a , b , c)")]
    #[case("(a ~ b) ~ c", "J((J(a , b)) , c)")]
    #[case("a ~ (b ~ c)", "J(a , (J(b , c)))")]
    #[case(
        "a.b.c ~ d[0](e)|f('~') is g ~ -h",
        "J(a.b.c , d[0](e)|f('~') is g , -h)"
    )]
    #[case("x + a ~ b * c - y", "x + J(a , b * c) - y")]
    #[case("not a ~ b == c", "not J(a , b) == c")]
    #[case("f(a ~ b, k=c ~ d)[e ~ f]", "f(J(a , b), k=J(c , d))[J(e , f)]")]
    #[case("[a] ~ [b]", "J(B(([a])) , B(([b])))")]
    #[case("[a ~ b]", "B(([J(a , b)]))")]
    #[case("[[a], 1]", "B(([B(([a])), 1]))")]
    #[case("[1, 2] ~ {}", "J([1, 2] , B(({})))")]
    #[case("(a, b)", "B(((a, b)))")]
    #[case("x in [a]", "x in B(([a]))")]
    #[case("x is in [a]", "x is in B(([a]))")]
    #[case("a.items.type ~ a.items()", "J(a.Pitems().type , a.items())")]
    #[case("a.pop is defined", "a.Ppop() is defined")]
    #[case(r"'\U0001F600\a\101\/'", "\"😀\u{7}A\\\\/\"")]
    #[case(r"'\n\'' '\x41'", r"'\n\'' '\x41'")]
    fn expressions_get_the_meaning_of_python(#[case] source: &str, #[case] expected: &str) {
        assert_eq!(rewritten(source), expected);
    }

    #[rstest]
    #[case("{% set ns.items = x.items %}", "{% set ns.items = x.Pitems() %}")]
    #[case(
        "{% for a, b in (c, d) %}{% endfor %}",
        "{% for a, b in B(((c, d))) %}{% endfor %}"
    )]
    #[case("{% set a, b = c ~ d, e %}", "{% set a, b = J(c , d), e %}")]
    #[case(
        "{% macro f(a, b=[c]) %}{{ a ~ b }}{% endmacro %}{% call f([d]) %}{% endcall %}",
        "{% macro f(a, b=B(([c]))) %}{{ J(a , b) }}{% endmacro %}{% call f(B(([d]))) %}{% endcall %}"
    )]
    #[case(
        "~ {# ~ #} {% raw %}{{ a ~ b }}{% endraw %}",
        "~ {# ~ #} {% raw %}{{ a ~ b }}{% endraw %}"
    )]
    #[case(
        "{% filter replace(a ~ b, c) %}{% endfilter %}",
        "{% filter replace(J(a , b), c) %}{% endfilter %}"
    )]
    fn statements_too(#[case] source: &str, #[case] expected: &str) {
        let text = rewrite(source, &SyntaxConfig::default()).unwrap();
        let text = text
            .replace(CONCAT, "J")
            .replace(BUILT, "B")
            .replace(ATTRIBUTE, "P");
        assert_eq!(text, expected);
    }

    #[rstest]
    #[case::long(&"x".repeat(MAX_SOURCE + 1), "bytes")]
    #[case::operators(&format!("{{{{ a{} }}}}", " ~ a".repeat(100_000)), "parts")]
    #[case::attributes(&format!("{{{{ a{} }}}}", ".a".repeat(100_000)), "parts")]
    #[case::branches(&format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(50_000)), "branches")]
    #[case::name(r"{{ '\N{BULLET}' }}", "names a character")]
    fn what_would_use_up_the_stack_is_refused(#[case] source: &str, #[case] reason: &str) {
        let error = rewrite(source, &SyntaxConfig::default()).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}
