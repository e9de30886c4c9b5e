//! Products of a step: planned at their first run, then found by expression and shapes.

use std::collections::HashMap;

use einsparse::{
    Context, Operand, Options, Plan, Precision, Result, Scalar, SparseTensor, Stream, Tensor,
    Weights,
};

/// Edge weights, sparse or as a dense matrix, the baseline for small graphs.
pub enum Edges<T: Scalar> {
    Sparse(SparseTensor<T>),
    Dense(Tensor<T>),
}

/// Sum of features along the edges.
pub const ALONG: &str = "P[m,f] = A[m,n] * H[n,f]";

/// Products by expression and shapes, planned at their first run.
pub struct Products<T: Scalar> {
    context: Context,
    edges: Edges<T>,
    /// Whether the edge weights are the same in both directions.
    symmetric: bool,
    plans: HashMap<(&'static str, Vec<usize>), Plan<T>>,
}

impl<T: Scalar> Products<T> {
    pub fn new(context: &Context, edges: Edges<T>, symmetric: bool) -> Self {
        Products { context: context.clone(), edges, symmetric, plans: HashMap::new() }
    }

    /// Backward pass along the edges: multiplies the transpose of A by a gradient.
    pub fn back(&mut self, g: &Tensor<T>, out: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let text = match self.symmetric {
            true => ALONG,
            false => "P[n,f] = A[m,n] * H[m,f]",
        };
        self.run(text, &[("H", g)], out, stream)
    }

    /// Runs an expression in which A is the edge weights.
    pub fn run(
        &mut self,
        text: &'static str,
        factors: &[(&str, &Tensor<T>)],
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let edges = match &self.edges {
            Edges::Sparse(edges) => Operand::from(edges),
            Edges::Dense(edges) => Operand::from(edges),
        };
        let edges = text.contains("A[").then_some(("A", edges));
        let factors = factors.iter().map(|(name, factor)| (*name, Operand::from(*factor)));
        let operands: Vec<_> = edges.into_iter().chain(factors).collect();
        let shapes = operands.iter().flat_map(|(_, o)| o.shape().to_vec()).collect();
        let key = (text, shapes);
        if !self.plans.contains_key(&key) {
            // Products along edges stay in f32; dense products use the Tensor Cores.
            let sparse = operands.iter().any(|(_, o)| matches!(o, Operand::Sparse(_)));
            let precision = if sparse { Precision::Full } else { Precision::Tf32 };
            let options = Options::default().precision(precision).weights(Weights::Static);
            let plan = self.context.plan(text).operands(&operands).options(&options).build()?;
            self.plans.insert(key.clone(), plan);
        }
        self.plans[&key].run(&operands, out, stream)
    }
}
