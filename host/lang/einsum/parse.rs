//! Recursive-descent parser from text to [`Einsum`]. It tracks byte positions for error messages.

use super::{Access, Activation, Einsum, Epilogue, IndexExpr, Mode, RELU_GRAD, Scalar, Term};
use crate::error::{Error, Result};

/// Maximum depth of nested accesses. The limit keeps any input from overflowing the stack.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    Number(&'a str),
    Sign(&'a str),
    End,
}

impl Token<'_> {
    fn describe(&self) -> String {
        match self {
            Token::Name(s) => format!("the name `{s}`"),
            Token::Number(s) => format!("the number `{s}`"),
            Token::Sign(s) => format!("`{s}`"),
            Token::End => "the end".into(),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    /// First byte of `token`.
    at: usize,
    /// First byte after `token`.
    next: usize,
    token: Token<'a>,
}

pub(super) fn einsum(text: &str) -> Result<Einsum> {
    let mut p = Parser { text, at: 0, next: 0, token: Token::End };
    p.advance();
    let Token::Name(_) = p.token else {
        return Err(p.error("an output, as in `C[m,n]`"));
    };
    let out = p.access_or_name("an output")?;
    let mode = p.mode(out.1)?;
    let activation = p.activation();
    let gated = p.function(RELU_GRAD);
    let inside = gated || activation != Activation::Identity;
    if inside {
        p.advance();
        p.advance();
    }
    let (scalars, factors) = p.product()?;
    let bias = p.bias()?;
    let gate = if gated { Some(p.gate()?) } else { None };
    if inside {
        p.sign(")", if bias.is_some() || gated { "`)`" } else { "`*`, `+ bias[m]` or `)`" })?;
    }
    if p.token != Token::End {
        let added = matches!(p.token, Token::Sign("+" | "-"));
        return Err(p.error(match (added, inside, bias.is_some()) {
            (true, true, _) => OUTSIDE,
            (true, false, _) => NO_SUMS,
            (false, false, false) => "`*`, `+ bias[m]` or the end",
            (false, ..) => "the end",
        }));
    }
    let epilogue = Epilogue { bias, activation, gate };
    Ok(Einsum { out: out.0, mode, scalars, factors, epilogue, text: text.to_owned() })
}

impl<'a> Parser<'a> {
    fn error(&self, expected: &str) -> Error {
        Error::Parse {
            expression: self.text.to_owned(),
            at: self.at,
            expected: expected.to_owned(),
            found: self.token.describe(),
        }
    }

    fn advance(&mut self) {
        let rest = &self.text[self.next..];
        let trimmed = rest.trim_start();
        self.at = self.next + (rest.len() - trimmed.len());
        self.token = lex(trimmed);
        self.next = self.at
            + match self.token {
                Token::Name(s) | Token::Number(s) | Token::Sign(s) => s.len(),
                Token::End => 0,
            };
    }

    fn sign(&mut self, sign: &str, expected: &str) -> Result<()> {
        if self.token != Token::Sign(sign) {
            return Err(self.error(expected));
        }
        self.advance();
        Ok(())
    }

    /// Parses `=` or `+=`. `indexed`: whether the output has indices.
    fn mode(&mut self, indexed: bool) -> Result<Mode> {
        let mode = match self.token {
            Token::Sign("=") => Mode::Assign,
            Token::Sign("+=") => Mode::Accumulate,
            _ if indexed => return Err(self.error("`=` or `+=`")),
            _ => return Err(self.error("`[`, `=` or `+=`")),
        };
        self.advance();
        Ok(mode)
    }

    /// Whether the token is the function `name`. `relu`, `gelu` and `relu_grad` are functions only before `(`, so
    /// tensors may have these names too.
    fn function(&self, name: &str) -> bool {
        self.before("(") && self.token == Token::Name(name)
    }

    /// Whether `sign` follows the token.
    fn before(&self, sign: &str) -> bool {
        self.text[self.next..].trim_start().starts_with(sign)
    }

    fn activation(&self) -> Activation {
        let is = |a: &Activation| a.name().is_some_and(|name| self.function(name));
        let found = [Activation::Relu, Activation::Gelu].into_iter().find(is);
        found.unwrap_or_default()
    }

    /// Parses `, H[m,n]`, the second operand of `relu_grad`.
    fn gate(&mut self) -> Result<Access> {
        self.sign(",", "`*`, `+ bias[m]` or `,`")?;
        match self.access_or_name("a gate, as in `H[m,n]`")? {
            (access, true) => Ok(access),
            (_, false) => Err(self.error("`[` after the gate")),
        }
    }

    fn product(&mut self) -> Result<(Vec<Scalar>, Vec<Access>)> {
        let (mut scalars, mut factors) = (Vec::new(), Vec::new());
        loop {
            match self.token {
                Token::Number(_) | Token::Sign("-") => scalars.push(self.literal()?),
                Token::Name(_) if self.before("(") => return Err(self.error(FUNCTIONS)),
                _ => match self.access_or_name("a factor")? {
                    (access, true) => factors.push(access),
                    (access, false) => scalars.push(Scalar::Name(access.tensor)),
                },
            }
            if self.token != Token::Sign("*") {
                return Ok((scalars, factors));
            }
            self.advance();
        }
    }

    fn literal(&mut self) -> Result<Scalar> {
        let negative = self.token == Token::Sign("-");
        if negative {
            self.advance();
        }
        let Token::Number(digits) = self.token else {
            return Err(self.error("a number"));
        };
        let value: f64 = digits.parse().map_err(|_| self.error("a number"))?;
        if !value.is_finite() {
            return Err(self.error("a number that f64 can hold"));
        }
        self.advance();
        Ok(Scalar::Literal(if negative { -value } else { value }))
    }

    fn bias(&mut self) -> Result<Option<Access>> {
        if self.token != Token::Sign("+") {
            return Ok(None);
        }
        self.advance();
        if matches!(self.token, Token::Number(_) | Token::Sign("-")) {
            return Err(self.error(A_BIAS));
        }
        match self.access_or_name("a bias, as in `bias[m]`")? {
            (_, _) if self.token == Token::Sign("*") => Err(self.error(NO_SUMS)),
            (access, true) => Ok(Some(access)),
            (_, false) => Err(self.error("`[` after the bias: it has an index, as in `bias[m]`")),
        }
    }

    /// Parses an access or a bare name. The second value is false for a bare name.
    fn access_or_name(&mut self, expected: &str) -> Result<(Access, bool)> {
        let Token::Name(tensor) = self.token else {
            return Err(self.error(expected));
        };
        self.advance();
        let mut access = Access { tensor: tensor.to_owned(), indices: Vec::new() };
        if self.token != Token::Sign("[") {
            return Ok((access, false));
        }
        access.indices = self.indices(0)?;
        Ok((access, true))
    }

    /// Parses `[i,j,...]`, with the token at `[`.
    fn indices(&mut self, depth: usize) -> Result<Vec<IndexExpr>> {
        if depth >= MAX_DEPTH {
            return Err(self.error(&format!("at most {MAX_DEPTH} nested accesses")));
        }
        self.advance();
        let mut indices = Vec::new();
        if self.token == Token::Sign("]") {
            self.advance();
            return Ok(indices);
        }
        loop {
            let index = self.index(depth, indices.is_empty())?;
            let expected = match &index {
                IndexExpr::Name(_) => "`[`, `+`, `,` or `]`",
                IndexExpr::Access(_) => "`,` or `]`",
                IndexExpr::Sum(_) => "`+`, `,` or `]`",
            };
            indices.push(index);
            match self.token {
                Token::Sign(",") => self.advance(),
                Token::Sign("]") => break,
                _ => return Err(self.error(expected)),
            }
        }
        self.advance();
        Ok(indices)
    }

    /// Parses `m`, `AK[p,q]` or `2*x+i`.
    fn index(&mut self, depth: usize, first: bool) -> Result<IndexExpr> {
        let expected = if first { "an index or `]`" } else { "an index" };
        let term = self.term(expected, &[])?;
        if self.token == Token::Sign("[") && term.1 {
            return Ok(IndexExpr::Access(Access {
                tensor: term.0.index,
                indices: self.indices(depth + 1)?,
            }));
        }
        let mut terms = vec![term.0];
        while self.token == Token::Sign("+") {
            self.advance();
            let term = self.term(NO_CONSTANTS, &terms)?.0;
            terms.push(term);
        }
        if self.token == Token::Sign("[") {
            return Err(self.error("`+`, `,` or `]`"));
        }
        Ok(match &terms[..] {
            [Term { factor: 1, index }] => IndexExpr::Name(index.clone()),
            _ => IndexExpr::Sum(terms),
        })
    }

    /// Parses `x` or `2*x` after the terms `before`, and returns whether the term is without a factor.
    fn term(&mut self, expected: &str, before: &[Term]) -> Result<(Term, bool)> {
        let factor = match self.token {
            Token::Number(digits) => Some(self.factor(digits, expected)?),
            _ => None,
        };
        let Token::Name(name) = self.token else {
            let behind = "an index after the factor";
            return Err(self.error(if factor.is_some() { behind } else { expected }));
        };
        if before.iter().any(|term| term.index == name) {
            return Err(self.error("an index that the sum does not have yet"));
        }
        self.advance();
        let term = Term { factor: factor.unwrap_or(1), index: name.to_owned() };
        Ok((term, factor.is_none()))
    }

    /// Parses `2 *`, with the token at the number. Errors refer to its position.
    fn factor(&mut self, digits: &str, expected: &str) -> Result<usize> {
        if !self.before("*") {
            let summed = self.before("+");
            return Err(self.error(if summed { NO_CONSTANTS } else { expected }));
        }
        let whole = digits.bytes().all(|digit| digit.is_ascii_digit());
        if !whole || digits.bytes().all(|digit| digit == b'0') {
            return Err(self.error("a positive whole factor, as in `2*x`"));
        }
        let Ok(factor) = digits.parse::<u32>() else {
            return Err(self.error("a factor that 32 bits hold"));
        };
        self.advance();
        self.advance();
        Ok(factor as usize)
    }
}

/// Message for an unknown name before `(`.
const FUNCTIONS: &str = "a factor: the functions are `relu(...)`, `gelu(...)` and `relu_grad(..., H[m,n])`, \
    around the whole sum";

/// Message for an addition after a function.
const OUTSIDE: &str =
    "the end: a bias stands inside the function, as in `relu(A[m,k] * B[k,n] + bias[m])`";

/// Message for an addition of a number.
const A_BIAS: &str = "a bias, as in `bias[m]`: `+` adds one along an axis of the output, behind the product, \
    and no number";

/// Message for an addition of products.
const NO_SUMS: &str = "the end: `+` adds a bias, one access, behind the product; a sum of products is two runs, \
    the second with `+=`";

/// Message for a constant in affine indices.
const NO_CONSTANTS: &str = "an index, with a factor as in `2*x` or without: constants are no part of a sum, \
    pad the operand";

/// Returns the first token of a text without leading white space.
fn lex(s: &str) -> Token<'_> {
    let Some(first) = s.chars().next() else {
        return Token::End;
    };
    if first.is_alphabetic() || first == '_' {
        let word = s.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(s.len());
        // A name may end in primes, as in the paper's m'.
        let end = s[word..].find(|c| c != '\'').map_or(s.len(), |n| word + n);
        return Token::Name(&s[..end]);
    }
    if first.is_ascii_digit() || first == '.' {
        return Token::Number(&s[..number_length(s.as_bytes())]);
    }
    if s.starts_with("+=") {
        return Token::Sign(&s[..2]);
    }
    Token::Sign(&s[..first.len_utf8()])
}

/// Returns the length in bytes of `12`, `1.5`, `.5`, `1e-3`. Letters directly after the digits belong to the number, so
/// that `2x` is an error.
fn number_length(s: &[u8]) -> usize {
    let mut end = 0;
    while end < s.len() {
        let exponent_sign = matches!(s[end], b'+' | b'-')
            && end > 0
            && matches!(s[end - 1], b'e' | b'E')
            && s.get(end + 1).is_some_and(u8::is_ascii_digit);
        if !(s[end].is_ascii_alphanumeric() || s[end] == b'.' || exponent_sign) {
            break;
        }
        end += 1;
    }
    end
}
