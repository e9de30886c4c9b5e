//! Plans that must exist, and work that is queued and waited for.

use einsparse::registry::Scalar;
use einsparse::{Context, Operand, Options, Plan, Result, SparseTensor, Stream, Tensor};

/// Queues work on a new stream, and waits for it.
#[track_caller]
pub fn finish(context: &Context, queue: impl FnOnce(&Stream) -> Result<()>) {
    let stream = context.stream().unwrap();
    queue(&stream).unwrap();
    stream.synchronize().unwrap();
}

/// Output of a plan into zeros.
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

/// Builds a plan. On an error, the test fails with the expression and the reason.
#[track_caller]
pub fn plan_of<T: Scalar>(
    context: &Context,
    text: &str,
    operands: &[(&str, Operand<'_, T>)],
    options: &Options,
) -> Plan<T> {
    let plan = context.plan(text).operands(operands).options(options);
    match plan.build() {
        Ok(plan) => plan,
        Err(error) => panic!("{text}: {error}"),
    }
}

/// Builds a plan into the positions that `out` stores.
#[track_caller]
pub fn sampled_plan_of<T: Scalar, Out: Scalar>(
    context: &Context,
    text: &str,
    operands: &[(&str, Operand<'_, T>)],
    out: &SparseTensor<Out>,
) -> Plan<T, Out> {
    let plan = context.plan(text).operands(operands).sparse_output(out);
    match plan.build() {
        Ok(plan) => plan,
        Err(error) => panic!("{text}: {error}"),
    }
}

/// Builds a plan, runs it, and returns both the plan and its output.
#[track_caller]
pub fn plan_and_run<T: Scalar>(
    context: &Context,
    text: &str,
    operands: &[(&str, Operand<'_, T>)],
    options: &Options,
) -> (Plan<T>, Tensor<T>) {
    let plan = plan_of(context, text, operands, options);
    let out = output_of(context, &plan, operands);
    (plan, out)
}
