//! Expressions over the problems of the suites: every epilogue and factor.

use einsparse::registry::Scalar;
use einsparse::{Operand, Tensor};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bias {
    None,
    Rows,
    Columns,
}

/// `C[m,n] (= | +=) relu(literal * s * A[m,k] * B[k,n] + bias)`
#[derive(Clone, Copy, Debug)]
pub struct Expression {
    pub accumulate: bool,
    pub bias: Bias,
    pub relu: bool,
    pub literal: Option<i32>,
    pub named: Option<f64>,
}

impl Expression {
    /// Every epilogue and factor, each with `=` and then with `+=`.
    pub fn all() -> Vec<Expression> {
        let epilogues = [
            (Bias::None, false, None, None),
            (Bias::Rows, false, None, None),
            (Bias::Columns, false, None, None),
            (Bias::None, true, None, None),
            (Bias::Rows, true, None, Some(0.5)),
            (Bias::Columns, true, Some(-3), None),
            (Bias::None, false, Some(-3), None),
            (Bias::None, false, None, Some(0.5)),
            (Bias::Rows, false, Some(3), Some(-0.5)),
        ];
        let both = |(bias, relu, literal, named)| {
            [false, true].map(|accumulate| Expression { accumulate, bias, relu, literal, named })
        };
        epilogues.into_iter().flat_map(both).collect()
    }

    pub fn alpha(&self) -> f64 {
        f64::from(self.literal.unwrap_or(1)) * self.named.unwrap_or(1.0)
    }

    pub fn text(&self) -> String {
        let literal = self.literal.map_or(String::new(), |x| format!("{x} * "));
        let named = self.named.map_or("", |_| "s * ");
        let bias = match self.bias {
            Bias::None => "",
            Bias::Rows => " + bias[m]",
            Bias::Columns => " + bias[n]",
        };
        let inner = format!("{literal}{named}A[m,k] * B[k,n]{bias}");
        let right = if self.relu { format!("relu({inner})") } else { inner };
        format!("C[m,n] {} {right}", if self.accumulate { "+=" } else { "=" })
    }

    /// Adds the operands of this expression other than A and B.
    pub fn operands<'a, T: Scalar>(
        &self,
        operands: &mut Vec<(&'static str, Operand<'a, T>)>,
        biases: [&'a Tensor<T>; 2],
    ) {
        match self.bias {
            Bias::None => {}
            Bias::Rows => operands.push(("bias", biases[0].into())),
            Bias::Columns => operands.push(("bias", biases[1].into())),
        }
        operands.extend(self.named.map(|s| ("s", s.into())));
    }
}
