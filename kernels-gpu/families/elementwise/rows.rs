//! Kernel table of the family `elementwise`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_elementwise {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            elementwise {
                "elementwise" RmsNormParams Own {
                    rms_norm_rows_f32 F32, rms_norm_rows_f16 F16, rms_norm_rows_bf16 Bf16: Direct, RmsRows;
                    rms_norm_sums_f32 F32, rms_norm_sums_f16 F16, rms_norm_sums_bf16 Bf16: Direct, RmsSums;
                    rms_norm_scale_f32 F32, rms_norm_scale_f16 F16, rms_norm_scale_bf16 Bf16: Direct, RmsScale;
                }
                "elementwise" NormGradientParams Own {
                    norm_gradient_f32 F32, norm_gradient_f16 F16, norm_gradient_bf16 Bf16: Direct, NormInput;
                    norm_gradient_parts_f32 F32, norm_gradient_parts_f16 F16, norm_gradient_parts_bf16 Bf16: Direct, NormParts;
                    norm_gradient_sum F32: Direct, NormSum;
                }
                "elementwise" RotaryParams Own {
                    rotary_f32 F32, rotary_f16 F16, rotary_bf16 Bf16: Direct, RotaryTile;
                }
                "elementwise" ActivationParams Own {
                    activation_f32 F32, activation_f16 F16, activation_bf16 Bf16: Direct, ActivationTile;
                    activation_gradient_f32 F32, activation_gradient_f16 F16, activation_gradient_bf16 Bf16: Direct, ActivationGradientTile;
                }
                "elementwise" GatedParams Own {
                    gated_unit_f32 F32, gated_unit_f16 F16, gated_unit_bf16 Bf16: Direct, GatedTile;
                }
                "quantize" QuantizeParams Own {
                    quantize_f16 F16, quantize_bf16 Bf16: Direct, QuantizeTile;
                }
                "elementwise" TokensParams Own {
                    tokens_embed_f32 F32, tokens_embed_f16 F16, tokens_embed_bf16 Bf16: Direct, EmbedTile;
                    tokens_greedy_f32 F32, tokens_greedy_f16 F16, tokens_greedy_bf16 Bf16: Direct, GreedyTile;
                }
            }
        }
    };
}
