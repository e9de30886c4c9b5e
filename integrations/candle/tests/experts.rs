//! Mixture of experts, compared with one made of candle operations.

use candle_core::{DType, Device, Result, Tensor, Var};
use einsparse::formats::generate;
use einsparse_candle::Experts;

const TOKENS: usize = 7;
const EXPERTS: usize = 3;
const MODEL: usize = 4;
const HIDDEN: usize = 5;
const TOP_K: usize = 2;

fn numbers(shape: &[usize], seed: u64) -> Result<Var> {
    let values = generate::small_integers::<f32>(shape.iter().product(), seed);
    Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)
}

/// Reference: every token through every expert, times the weight of the choices that name the expert.
fn by_candle([x, weights, up, down]: [&Tensor; 4], choices: &Tensor, relu: bool) -> Result<Tensor> {
    let mut out = Tensor::zeros((TOKENS, MODEL), DType::F32, &Device::Cpu)?;
    for expert in 0..EXPERTS {
        let hidden = x.matmul(&up.get(expert)?)?;
        // The gradient of candle's ReLU at 0 is 1, that of einsparse is 0.
        let above = hidden.gt(0.0)?.to_dtype(DType::F32)?;
        let hidden = if relu { (hidden * above)? } else { hidden };
        let chosen = choices.eq(expert as u32)?.to_dtype(DType::F32)?;
        let weight = (weights * chosen)?.sum_keepdim(1)?;
        out = (out + hidden.matmul(&down.get(expert)?)?.broadcast_mul(&weight)?)?;
    }
    Ok(out)
}

#[test]
fn experts_are_those_of_candle() -> Result<()> {
    let chosen: Vec<u32> = (0..TOKENS * TOP_K).map(|i| (i * 5 % 7 % EXPERTS) as u32).collect();
    let choices = Tensor::from_vec(chosen, (TOKENS, TOP_K), &Device::Cpu)?;
    let x = numbers(&[TOKENS, MODEL], 1)?;
    let weights = numbers(&[TOKENS, TOP_K], 2)?;
    let up = numbers(&[EXPERTS, MODEL, HIDDEN], 3)?;
    let down = numbers(&[EXPERTS, HIDDEN, MODEL], 4)?;
    for relu in [true, false] {
        let layer = Experts { hidden: HIDDEN, relu };
        let ours = layer.forward(&x, (&choices, &weights), (&up, &down))?;
        let theirs = by_candle([&x, &weights, &up, &down], &choices, relu)?;
        assert_eq!(ours.to_vec2::<f32>()?, theirs.to_vec2::<f32>()?);
        let of_out = numbers(&[TOKENS, MODEL], 5)?;
        let gradients = |out: Tensor| (out * of_out.as_tensor())?.sum_all()?.backward();
        let (ours, theirs) = (gradients(ours)?, gradients(theirs)?);
        for of in [&x, &weights, &up, &down] {
            let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
            let found = ours.get(of).expect("a gradient of ours");
            let wanted = theirs.get(of).expect("a gradient of candle's");
            assert_eq!(flat(found)?, flat(wanted)?);
        }
    }
    Ok(())
}

#[test]
fn wrong_operands_are_errors_with_numbers() -> Result<()> {
    let layer = Experts { hidden: HIDDEN, relu: true };
    let choices = Tensor::full(9u32, (TOKENS, TOP_K), &Device::Cpu)?;
    let (x, weights) = (numbers(&[TOKENS, MODEL], 1)?, numbers(&[TOKENS, TOP_K], 2)?);
    let up = numbers(&[EXPERTS, MODEL, HIDDEN], 3)?;
    let down = numbers(&[EXPERTS, HIDDEN, MODEL], 4)?;
    let text = |choices: &Tensor, down: &Tensor| {
        let out = layer.forward(&x, (choices, &weights), (&up, down));
        out.expect_err("wrong operands").to_string()
    };
    let past = text(&choices, &down);
    assert!(past.contains("expert 9") && past.contains("are 3"), "{past}");
    let other = text(&choices.zeros_like()?, &up);
    assert!(other.contains("`down`") && other.contains("[3, 5, 4]"), "{other}");
    Ok(())
}
