//! What programs plan and run, of every element type, compiled with the library. In the dev profile rustc shares such code between
//! crates; without this every test and example would compile all kernels' plans and the executor for itself. One program alone is
//! compiled sooner without.

use crate::context::Context;
use crate::entries::EntryChoice;
use crate::error::Result;
use crate::plan::Options;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};
use einsparse_formats::{AnySparse, Dense, E4m3, E5m2};
use half::{bf16, f16};

/// Never called: its code is what it calls.
pub fn instances(ctx: &Context) -> Result<()> {
    own::<f32>(ctx)?;
    own::<f64>(ctx)?;
    own::<f16>(ctx)?;
    own::<bf16>(ctx)?;
    into::<i8, f16>(ctx)?;
    into::<i8, bf16>(ctx)?;
    into::<i8, f32>(ctx)?;
    into::<i8, i32>(ctx)?;
    into::<E4m3, f16>(ctx)?;
    into::<E4m3, bf16>(ctx)?;
    into::<E4m3, f32>(ctx)?;
    into::<E5m2, f16>(ctx)?;
    into::<E5m2, bf16>(ctx)?;
    into::<E5m2, f32>(ctx)
}

/// Operands and outputs of one type.
fn own<T: Scalar>(ctx: &Context) -> Result<()> {
    into::<T, T>(ctx)?;
    let mut out = ctx.zeros::<T>(&[])?;
    let operands: [(&str, Operand<'_, T>); 0] = [];
    let plan = ctx.plan::<T>("", &operands, &Options::default())?;
    plan.run(&operands, &mut out, &ctx.stream()?)?;
    ctx.contraction_path("", &operands)?;
    ctx.position_lists("", &operands)?;
    crate::ops::einsum(ctx, "", &operands)?;
    Ok(())
}

/// A plan into a dense and one into a sparse output.
fn into<T: Scalar, Out: Scalar>(ctx: &Context) -> Result<()> {
    let options = Options::default();
    let stream = ctx.stream()?;
    let operands: [(&str, Operand<'_, T>); 0] = [];
    let mut dense = moved::<Out>(ctx)?;
    let plan = ctx.plan_into::<T, Out>("", &operands, &options)?;
    plan.run(&operands, &mut dense.0, &stream)?;
    let sampled = ctx.plan_sampled_into::<T, Out>("", &operands, &dense.1, &options)?;
    sampled.run(&operands, &mut dense.1, &stream)?;
    moved::<T>(ctx).map(drop)
}

/// There and back.
fn moved<T: Scalar>(ctx: &Context) -> Result<(Tensor<T>, SparseTensor<T>)> {
    let dense = Dense::<T>::zeros([1])?;
    let tensor = ctx.upload_dense(&dense)?;
    let sparse: AnySparse<T> = ctx
        .csr_from_dense(&tensor, EntryChoice::NonZero)?
        .to_host()?;
    tensor.to_dense()?;
    Ok((tensor, ctx.upload(sparse)?))
}
