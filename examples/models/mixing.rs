//! Products of a step, planned at their first run. Also rows times one of several matrices, forward and backward.

use std::collections::HashMap;

use einsparse::formats::Dense;
use einsparse::formats::generate::random_values;
use einsparse::{Context, Operand, Options, Plan, Precision, Result, Scalar, Stream, Tensor};

/// Expressions with an output `Out`, planned at their first run.
pub struct Plans<T: Scalar> {
    context: Context,
    options: Options,
    plans: HashMap<(&'static str, Vec<usize>), Plan<T>>,
}

impl<T: Scalar> Plans<T> {
    pub fn new(context: &Context, precision: Precision) -> Self {
        Plans {
            context: context.clone(),
            options: Options::default().precision(precision),
            plans: HashMap::new(),
        }
    }

    pub fn run(
        &mut self,
        text: &'static str,
        factors: &[(&str, Operand<'_, T>)],
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let factors_shapes = factors.iter().flat_map(|(_, f)| f.shape().to_vec());
        let key = (text, factors_shapes.chain(out.shape().to_vec()).collect());
        if !self.plans.contains_key(&key) {
            let mut all = factors.to_vec();
            all.push(("Out", (&*out).into()));
            let plan = self.context.plan(text).operands(&all);
            self.plans.insert(key.clone(), plan.options(&self.options).build()?);
        }
        // The plan stores the index lists.
        let given: Vec<_> = factors
            .iter()
            .filter(|(_, factor)| !matches!(factor, Operand::Index(..)))
            .cloned()
            .collect();
        self.plans[&key].run(&given, out, stream)
    }

    /// Adds `factor * row` to every row.
    pub fn add_rows(
        &mut self,
        factor: &Tensor<T>,
        row: &Tensor<T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let factors = [("S", factor.into()), ("R", row.into())];
        self.run("Out[n,d] += S[n] * R[d]", &factors, out, stream)
    }
}

/// Terms of the rows of an item: `(row of the output, row of the input, matrix)`.
pub type Wiring = Vec<[usize; 3]>;

/// `Out[Q[p],n] = In[I[p],c] * W[T[p],c,n]`: multiplies the channels of each row by one of several matrices. With
/// transposed matrices and exchanged lists it computes the gradient of its input.
pub struct Mix<T: Scalar> {
    lists: [Vec<u32>; 3],
    rows: [usize; 2],
    channels: [usize; 2],
    /// W, and W transposed.
    weights: [Tensor<T>; 2],
    plans: Plans<T>,
}

const SET: &str = "Out[Q[p],n] = In[I[p],c] * W[T[p],c,n]";
const ADD: &str = "Out[Q[p],n] += In[I[p],c] * W[T[p],c,n]";

impl<T: Scalar> Mix<T> {
    /// Creates the product for `items` items, from `rows[0]` rows to `rows[1]`. Weights are random, and scaled so that
    /// sums are as large as their terms, times `scale`.
    pub fn new(
        plans: &Plans<T>,
        items: usize,
        rows: [usize; 2],
        wiring: &Wiring,
        channels @ [inputs, outputs]: [usize; 2],
        (scale, seed): (f64, u64),
    ) -> Result<Self> {
        let ctx = &plans.context;
        let matrices = 1 + wiring.iter().map(|w| w[2]).max().unwrap_or(0);
        // Terms of a row of the output.
        let terms = wiring.iter().filter(|w| w[0] == wiring[0][0]).count();
        let size = scale / ((inputs * terms) as f64).sqrt();
        let drawn = random_values::<f64>(matrices * inputs * outputs, seed);
        let value = |t: usize, i: usize, o: usize| {
            T::from_f64(size * drawn[(t * inputs + i) * outputs + o])
        };
        let weights = [
            Dense::from_fn([matrices, inputs, outputs], |at| value(at[0], at[1], at[2]))?,
            Dense::from_fn([matrices, outputs, inputs], |at| value(at[0], at[2], at[1]))?,
        ];
        let all = || (0..items).flat_map(|item| wiring.iter().map(move |w| (item, w)));
        Ok(Mix {
            lists: [
                all().map(|(n, w)| (n * rows[1] + w[0]) as u32).collect(),
                all().map(|(n, w)| (n * rows[0] + w[1]) as u32).collect(),
                all().map(|(_, w)| w[2] as u32).collect(),
            ],
            rows: rows.map(|rows| items * rows),
            channels,
            weights: [ctx.upload_dense(&weights[0])?, ctx.upload_dense(&weights[1])?],
            plans: Plans::new(ctx, plans.options.precision),
        })
    }

    /// Uses matrix 0 for every row.
    pub fn dense(
        plans: &Plans<T>,
        rows: usize,
        channels: [usize; 2],
        drawn: (f64, u64),
    ) -> Result<Self> {
        Mix::new(plans, rows, [1, 1], &vec![[0, 0, 0]], channels, drawn)
    }

    /// Writes `out`, or adds to it.
    pub fn forward(
        &mut self,
        input: &mut Tensor<T>,
        out: &mut Tensor<T>,
        add: bool,
        stream: &Stream,
    ) -> Result<()> {
        self.run(0, input, out, add, stream)
    }

    /// Computes the gradient of the input from that of the output.
    pub fn backward(
        &mut self,
        dout: &mut Tensor<T>,
        dinput: &mut Tensor<T>,
        add: bool,
        stream: &Stream,
    ) -> Result<()> {
        self.run(1, dout, dinput, add, stream)
    }

    fn run(
        &mut self,
        way: usize,
        from: &mut Tensor<T>,
        to: &mut Tensor<T>,
        add: bool,
        stream: &Stream,
    ) -> Result<()> {
        let shapes = [from.shape().to_vec(), to.shape().to_vec()];
        // Items and their rows are one axis here.
        from.reshape(&[self.rows[way], self.channels[way]])?;
        to.reshape(&[self.rows[1 - way], self.channels[1 - way]])?;
        let [own, other, matrix] = &self.lists;
        let [own, other] = if way == 0 { [own, other] } else { [other, own] };
        let shape = [matrix.len()];
        let factors = [
            ("In", (&*from).into()),
            ("W", (&self.weights[way]).into()),
            ("Q", (&shape[..], &own[..]).into()),
            ("I", (&shape[..], &other[..]).into()),
            ("T", (&shape[..], &matrix[..]).into()),
        ];
        let text = if add { ADD } else { SET };
        self.plans.run(text, &factors, to, stream)?;
        from.reshape(&shapes[0])?;
        to.reshape(&shapes[1])
    }
}
