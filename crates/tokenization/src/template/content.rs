//! Whether a template goes through the parts of a message's content.
//!
//! The engine decides it by the source, not by a run: a loop over the `content` of what loops over `messages`, or over
//! a variable that is one of them. The same rule is followed here, also where it misses a loop inside of a macro.

use std::collections::BTreeSet;

use minijinja::{
    machinery::{
        ast::{Expr, Stmt},
        parse,
    },
    syntax::SyntaxConfig,
};

use super::rewrite::bodies;

const MESSAGES: &str = "messages";
const CONTENT: &str = "content";

#[derive(Debug, Default)]
struct Found<'a> {
    /// `{% for target in iter %}`
    loops: Vec<(&'a Expr<'a>, &'a Expr<'a>)>,
    /// `{% set target = value %}`
    assignments: Vec<(&'a Expr<'a>, &'a Expr<'a>)>,
}

/// Of a source that cannot be read: no.
pub(super) fn is_iterated(source: &str, syntax: SyntaxConfig) -> bool {
    let Ok(root) = parse(source, "", syntax) else {
        return false;
    };
    let mut found = Found::default();
    found.visit(&root);
    let lists = found.renamed(MESSAGES);
    let is_message = |(target, iter): &(&Expr<'_>, &Expr<'_>)| {
        let name = variable(iter).filter(|name| lists.contains(name));
        name.and(plain_variable(target)).map(str::to_owned)
    };
    let messages: BTreeSet<String> = found.loops.iter().filter_map(is_message).collect();
    found.loops.iter().any(|(_, iter)| match member(iter) {
        Some((object, CONTENT)) => messages.contains(object),
        _ => false,
    })
}

// === impl Found ===

impl<'a> Found<'a> {
    fn visit(&mut self, statement: &'a Stmt<'a>) {
        match statement {
            Stmt::ForLoop(found) => self.loops.push((&found.target, &found.iter)),
            Stmt::Set(set) => self.assignments.push((&set.target, &set.expr)),
            _ => {}
        }
        for statement in bodies(statement).into_iter().flatten() {
            self.visit(statement);
        }
    }

    /// The variables that are `name`, or a part of it.
    fn renamed(&self, name: &'a str) -> BTreeSet<&'a str> {
        let mut names = BTreeSet::from([name]);
        loop {
            let known = names.len();
            for (target, value) in &self.assignments {
                if variable(value).is_some_and(|name| names.contains(name)) {
                    names.extend(plain_variable(target));
                }
            }
            if names.len() == known {
                return names;
            }
        }
    }
}

/// Through filters, tests and slices, which leave elements as they are.
fn inner<'a>(expr: &'a Expr<'a>) -> Option<&'a Expr<'a>> {
    match expr {
        Expr::Filter(filter) => filter.expr.as_ref().and_then(inner),
        Expr::Test(test) => inner(&test.expr),
        Expr::Slice(slice) => inner(&slice.expr),
        _ => Some(expr),
    }
}

fn variable<'a>(expr: &'a Expr<'a>) -> Option<&'a str> {
    inner(expr).and_then(plain_variable)
}

fn plain_variable<'a>(expr: &'a Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(variable) => Some(variable.id),
        _ => None,
    }
}

/// `object.name` or `object['name']`.
fn member<'a>(expr: &'a Expr<'a>) -> Option<(&'a str, &'a str)> {
    match inner(expr)? {
        Expr::GetAttr(access) => Some((plain_variable(&access.expr)?, access.name)),
        Expr::GetItem(access) => match &access.subscript_expr {
            Expr::Const(key) => Some((plain_variable(&access.expr)?, key.value.as_str()?)),
            _ => None,
        },
        _ => None,
    }
}
