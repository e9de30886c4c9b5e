//! Kernels beyond the product of a matrix with a dense one. Each family looks at the structure of the indirect Einsum and
//! offers its kernels with predicted costs, or says why it has none; the cheapest of all offers and products is taken.

use std::fmt;
use std::sync::Arc;

use super::choose::Candidate;
use super::{Operand, Options};
use crate::context::Context;
use crate::cost::Machine;
use crate::device::{Device, Stream};
use crate::einsum::{Einsum, Extents};
use crate::error::{Refusal, Result};
use crate::indirect::IndirectEinsum;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// What a family is asked: an expression with the formats written in, bound to its operands.
pub(crate) struct Question<'q, 'a, T: Scalar> {
    pub(crate) context: &'q Context,
    pub(crate) einsum: &'q Einsum,
    pub(crate) indirect: &'q IndirectEinsum,
    pub(crate) operands: &'q [(&'q str, Operand<'a, T>)],
    /// Extents of the indices of `einsum`, and the shape of the output.
    pub(crate) extents: &'q Extents,
    pub(crate) options: &'q Options,
    pub(crate) machine: &'q Machine,
}

/// A kernel, or a chain of kernels, made for one expression: pattern, extents and formats are fixed, values are not.
pub(crate) trait Compiled<T: Scalar, Out: Scalar>:
    fmt::Debug + fmt::Display + Send + Sync
{
    /// Name of the row of the table; of a chain its own name.
    fn variant(&self) -> &'static str;

    /// Device bytes held beside the operands.
    fn bytes(&self) -> usize;

    /// Queues the work. Shapes and places of all operands have been checked by the plan; allocates nothing and waits for
    /// nothing.
    fn run(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()>;
}

/// Makes what was offered, on a GPU. `Error::NoKernel` passes the turn to the next candidate.
pub(crate) type Make<'q, T, Out> =
    Box<dyn Fn(&Arc<Device>) -> Result<Box<dyn Compiled<T, Out>>> + 'q>;

/// A candidate of a family.
pub(crate) struct Offer<'q, T, Out> {
    pub(crate) candidate: Candidate,
    pub(crate) make: Make<'q, T, Out>,
}

/// What a family answers.
pub(crate) enum Answer<'q, T, Out> {
    /// Kernels that can run this.
    Offers(Vec<Offer<'q, T, Out>>),
    /// None, and why.
    Refused(Refusal),
}

type Family<T, Out> = for<'q, 'a> fn(&'q Question<'q, 'a, T>) -> Result<Answer<'q, T, Out>>;

/// Every family for one structure, one line each. The order has no meaning.
fn matched<T: Scalar, Out: Scalar>() -> Vec<Family<T, Out>> {
    vec![super::rows::offers, super::tensor_product::offers]
}

/// What runs any structure.
fn general<T: Scalar, Out: Scalar>() -> Vec<Family<T, Out>> {
    vec![super::path::offers, super::einsum::offers]
}

/// Every offer, and why other families have none.
type Asked<'q, T, Out> = (Vec<Offer<'q, T, Out>>, Vec<Refusal>);

/// Asks every family. One that is made for the structure is taken before what runs any; a plan that names a variant asks all.
#[allow(clippy::type_complexity)]
pub(super) fn ask<'q, T: Scalar, Out: Scalar>(
    question: &'q Question<'q, '_, T>,
) -> Result<Asked<'q, T, Out>> {
    let (mut offers, mut refused) = (Vec::new(), Vec::new());
    for families in [matched::<T, Out>(), general::<T, Out>()] {
        if !offers.is_empty() && question.options.variant.is_none() {
            break;
        }
        for family in families {
            match family(question)? {
                Answer::Offers(own) => offers.extend(own),
                Answer::Refused(why) => refused.push(why),
            }
        }
    }
    if let Some(name) = &question.options.variant {
        offers.retain(|offer| offer.candidate.name == name);
    }
    Ok((offers, refused))
}
