//! Convolutions written as expressions over index lists. The plan recognizes them by structure and uses the kernels of
//! convolutions, or reports why it does not.

use super::{Pairs, cloud, operand, pairs};
use crate::support::assert_error;
use crate::support::{Rng, gpu};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Error, Options, Plan, Precision, Scalar, Tensor, ZerosRule};

const LINE: &str = "Out[Q[p],n] += In[I[p],c] * W[T[p],c,n]";

/// Returns lists of output rows, input rows and offsets, with the pairs in random order.
fn lists(pairs: &Pairs, rng: &mut Rng) -> [Vec<u32>; 3] {
    let mut terms: Vec<[u32; 3]> =
        pairs.iter().map(|&(t, i, o)| [o as u32, i as u32, t as u32]).collect();
    for last in (1..terms.len()).rev() {
        terms.swap(last, rng.word() as usize % (last + 1));
    }
    [0, 1, 2].map(|axis| terms.iter().map(|term| term[axis]).collect())
}

/// Operands and output of an expression.
struct Case<T> {
    lists: [Vec<u32>; 3],
    input: (Vec<f64>, Tensor<T>),
    weights: (Vec<f64>, Tensor<T>),
    out: (Vec<f64>, Tensor<T>),
}

const CHANNELS: [usize; 2] = [24, 40];

impl<T: Scalar> Case<T> {
    fn new(ctx: &Context, count: usize, turned: bool) -> (Case<T>, Pairs) {
        let voxels = cloud(count, 12, 5);
        let (out, pairs) = pairs(&voxels, [3; 3], [1; 3]);
        let mut rng = Rng(9);
        let [c, n] = CHANNELS;
        let stack = if turned { [27, n, c] } else { [27, c, n] };
        let case = Case {
            lists: lists(&pairs, &mut rng),
            input: operand(ctx, &[voxels.len(), c], 0, &mut rng),
            weights: operand(ctx, &stack, 0, &mut rng),
            out: operand(ctx, &[out.len(), n], 0, &mut rng),
        };
        (case, pairs)
    }

    /// Plans and runs an expression; returns the plan and the output.
    fn run(
        &mut self,
        ctx: &Context,
        line: &str,
        options: &Options,
    ) -> Result<(Plan<T>, Vec<T>), Error> {
        let len = [self.lists[0].len()];
        let list = |i: usize| (&len[..], &self.lists[i][..]);
        let operands = [("In", (&self.input.1).into()), ("W", (&self.weights.1).into())];
        let mut planned = operands.to_vec();
        for (number, name) in ["Q", "I", "T"].into_iter().enumerate() {
            planned.push((name, list(number).into()));
        }
        planned.push(("Out", (&self.out.1).into()));
        let plan = ctx.plan(line).operands(&planned).options(options).build()?;
        drop(planned);
        let stream = ctx.stream()?;
        plan.run(&operands, &mut self.out.1, &stream)?;
        stream.synchronize()?;
        let out = self.out.1.to_dense()?.values().to_vec();
        Ok((plan, out))
    }

    /// Returns the result by definition.
    fn wanted(&self, pairs: &Pairs, turned: bool, (old, factor): (f64, f64)) -> Vec<f64> {
        let [c, n] = CHANNELS;
        let mut sums: Vec<f64> = self.out.0.iter().map(|x| x * old).collect();
        for &(t, i, o) in pairs {
            for k in 0..c {
                for j in 0..n {
                    let at = if turned { j * c + k } else { k * n + j };
                    let product = self.input.0[i * c + k] * self.weights.0[t * c * n + at];
                    sums[o * n + j] += factor * product;
                }
            }
        }
        sums
    }
}

fn agree<T: Scalar>(ctx: &Context, precision: Precision) {
    let lines = [
        (LINE, false, (1.0, 1.0)),
        ("Out[Q[s],m] = 2 * In[I[s],k] * W[T[s],k,m]", false, (0.0, 2.0)),
        ("Out[Q[p],n] += W[T[p],n,c] * In[I[p],c]", true, (1.0, 1.0)),
    ];
    for (line, turned, factors) in lines {
        let (mut case, pairs) = Case::<T>::new(ctx, 200, turned);
        let wanted = case.wanted(&pairs, turned, factors);
        let options = Options::default().precision(precision);
        let (plan, found) = case.run(ctx, line, &options).unwrap();
        let chosen = plan.choice().candidates[0].name;
        assert!(chosen.starts_with("conv_"), "{}", plan.choice());
        for (at, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let wanted = T::from_f64(*wanted);
            assert!(*found == wanted, "{line}, {plan}: {at} is {found}, not {wanted}");
        }
    }
}

#[test]
fn lines_over_lists_are_convolutions() {
    agree::<f32>(&Context::unchecked_cpu(), Precision::Full);
    let Some(gpu) = gpu() else { return };
    agree::<f16>(&gpu, Precision::Full);
    agree::<bf16>(&gpu, Precision::Full);
    agree::<f32>(&gpu, Precision::Full);
    agree::<f32>(&gpu, Precision::Tf32);
}

/// Under `ZerosRule::Strict`, matrices of NaN and Inf affect the rows that have a term with them, and no others.
#[test]
fn rows_without_a_term_see_nothing_of_its_matrix() {
    let check = |ctx: &Context| {
        let (mut case, pairs) = Case::<f32>::new(ctx, 200, false);
        let [c, n] = CHANNELS;
        let planted = [(5, f32::NAN), (20, f32::INFINITY)];
        let values = case.weights.0.iter().enumerate().map(|(at, &x)| {
            let own = planted.iter().find(|(t, _)| *t == at / (c * n));
            own.map_or(x as f32, |(_, x)| *x)
        });
        let dense = Dense::new([27, c, n], values.collect()).unwrap();
        case.weights.1 = ctx.upload_dense(&dense).unwrap();
        let ones = Dense::from_fn(case.input.1.shape().to_vec(), |_| 1.0f32).unwrap();
        case.input.1 = ctx.upload_dense(&ones).unwrap();
        let options = Options::default().zeros(ZerosRule::Strict);
        let (plan, found) = case.run(ctx, LINE, &options).unwrap();
        let choice = plan.choice().to_string();
        assert!(choice.contains("multiplies zeros"), "{choice}");
        for (row, values) in found.chunks(n).enumerate() {
            let has = |t: usize| pairs.iter().any(|&(own, _, o)| (own, o) == (t, row));
            let (nan, inf) = (has(planted[0].0), has(planted[1].0));
            for x in values {
                assert_eq!(x.is_nan(), nan, "row {row}: {x}");
                assert!(nan || x.is_infinite() == inf, "row {row}: {x}");
            }
        }
    };
    check(&Context::unchecked_cpu());
    if let Some(gpu) = gpu() {
        check(&gpu);
    }
}

/// Expressions outside of the kernels' scope use the general kernels, and the plan states the reason. Errors name
/// positions past the end of an operand.
#[test]
fn other_lines_go_on() {
    let ctx = Context::unchecked_cpu();
    let reason = |line: &str, extra: Option<&Tensor<f32>>, case: &Case<f32>| {
        let len = [case.lists[0].len()];
        let list = |i: usize| (&len[..], &case.lists[i][..]);
        let mut operands = vec![
            ("Q", list(0).into()),
            ("I", list(1).into()),
            ("T", list(2).into()),
            ("In", (&case.input.1).into()),
            ("W", (&case.weights.1).into()),
            ("Out", (&case.out.1).into()),
        ];
        operands.extend(extra.map(|v| ("V", v.into())));
        let plan = ctx.plan(line).operands(&operands).build();
        plan.map(|plan| plan.choice().to_string())
    };
    let (mut case, _) = Case::<f32>::new(&ctx, 60, false);
    let values = ctx.zeros::<f32>(&[case.lists[0].len()]).unwrap();
    let scaled = LINE.replace("In[", "V[p] * In[");
    let said = reason(&scaled, Some(&values), &case).unwrap();
    assert!(said.contains("`V[p]` would have to scale each"), "{said}");
    for list in &mut case.lists {
        list.push(list[0]);
    }
    for (to, x) in case.lists.iter_mut().zip([0, 1, 26]) {
        to.extend([x, x]);
    }
    let said = reason(LINE, None, &case).unwrap();
    assert!(said.contains("one term for each row and matrix"), "{said}");
    case.lists[1][7] = 1 << 20;
    case.lists[0][7] = 0;
    case.lists[2][7] = 0;
    let error = reason(LINE, None, &case).unwrap_err();
    assert_error!(
        error,
        Error::InvalidIndex { array, position: 7, value: 1048576, .. } if array == "I"
    );
}
