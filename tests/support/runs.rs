//! Work that is queued and waited for.

use einsparse::registry::Scalar;
use einsparse::{Context, Operand, Options, Plan, Result, Stream, Tensor};

/// Queues work on a stream of its own, and waits for it.
#[track_caller]
pub fn finish(context: &Context, queue: impl FnOnce(&Stream) -> Result<()>) {
    let stream = context.stream().unwrap();
    queue(&stream).unwrap();
    stream.synchronize().unwrap();
}

/// The output of a plan, which was zeros before.
#[track_caller]
pub fn output_of<T: Scalar, Out: Scalar>(
    context: &Context,
    plan: &Plan<T, Out>,
    operands: &[(&str, Operand<'_, T>)],
) -> Tensor<Out> {
    let mut out = context.zeros(plan.out_shape()).unwrap();
    finish(context, |stream| plan.run(operands, &mut out, stream));
    out
}

/// A plan, and its output.
#[track_caller]
pub fn plan_and_run<T: Scalar>(
    context: &Context,
    text: &str,
    operands: &[(&str, Operand<'_, T>)],
    options: &Options,
) -> (Plan<T>, Tensor<T>) {
    let plan = context
        .plan(text)
        .operands(operands)
        .options(options)
        .build();
    let plan = plan.unwrap_or_else(|error| panic!("{text}: {error}"));
    let out = output_of(context, &plan, operands);
    (plan, out)
}
