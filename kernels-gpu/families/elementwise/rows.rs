//! Kernel table of the family `elementwise`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_elementwise {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            elementwise {
                rms_norm "rms_norm" RmsNormParams Own {
                    rms_norm_rows_f32: Direct, F32, RmsRows;
                    rms_norm_rows_f16: Direct, F16, RmsRows;
                    rms_norm_rows_bf16: Direct, Bf16, RmsRows;
                    rms_norm_sums_f32: Direct, F32, RmsSums;
                    rms_norm_sums_f16: Direct, F16, RmsSums;
                    rms_norm_sums_bf16: Direct, Bf16, RmsSums;
                    rms_norm_scale_f32: Direct, F32, RmsScale;
                    rms_norm_scale_f16: Direct, F16, RmsScale;
                    rms_norm_scale_bf16: Direct, Bf16, RmsScale;
                }
                norm_gradient "norm_gradient" NormGradientParams Own {
                    norm_gradient_f32: Direct, F32, NormInput;
                    norm_gradient_f16: Direct, F16, NormInput;
                    norm_gradient_bf16: Direct, Bf16, NormInput;
                    norm_gradient_parts_f32: Direct, F32, NormParts;
                    norm_gradient_parts_f16: Direct, F16, NormParts;
                    norm_gradient_parts_bf16: Direct, Bf16, NormParts;
                    norm_gradient_sum: Direct, F32, NormSum;
                }
                rotary "rotary" RotaryParams Own {
                    rotary_f32: Direct, F32, RotaryTile;
                    rotary_f16: Direct, F16, RotaryTile;
                    rotary_bf16: Direct, Bf16, RotaryTile;
                }
                activation "activation" ActivationParams Own {
                    activation_f32: Direct, F32, ActivationTile;
                    activation_f16: Direct, F16, ActivationTile;
                    activation_bf16: Direct, Bf16, ActivationTile;
                    activation_gradient_f32: Direct, F32, ActivationGradientTile;
                    activation_gradient_f16: Direct, F16, ActivationGradientTile;
                    activation_gradient_bf16: Direct, Bf16, ActivationGradientTile;
                }
                gated "gated" GatedParams Own {
                    gated_unit_f32: Direct, F32, GatedTile;
                    gated_unit_f16: Direct, F16, GatedTile;
                    gated_unit_bf16: Direct, Bf16, GatedTile;
                }
                quantize "quantize" QuantizeParams Own {
                    quantize_f16: Direct, F16, QuantizeTile;
                    quantize_bf16: Direct, Bf16, QuantizeTile;
                }
                tokens "tokens" TokensParams Own {
                    tokens_embed_f32: Direct, F32, EmbedTile;
                    tokens_embed_f16: Direct, F16, EmbedTile;
                    tokens_embed_bf16: Direct, Bf16, EmbedTile;
                    tokens_greedy_f32: Direct, F32, GreedyTile;
                    tokens_greedy_f16: Direct, F16, GreedyTile;
                    tokens_greedy_bf16: Direct, Bf16, GreedyTile;
                }
            }
        }
    };
}
