//! Lists the parts of a statement or an expression.

use minijinja::machinery::ast::{CallArg, Expr, Stmt};

/// The expressions of a statement itself.
pub(super) fn expressions<'a>(statement: &'a Stmt<'a>) -> Vec<&'a Expr<'a>> {
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
pub(in crate::template) fn bodies<'a>(statement: &'a Stmt<'a>) -> Vec<&'a [Stmt<'a>]> {
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

/// The expressions within an expression.
pub(super) fn children<'a>(expr: &'a Expr<'a>) -> Vec<&'a Expr<'a>> {
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
