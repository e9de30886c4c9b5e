//! Rows of the kernel table that belong to the family `optimizer`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_optimizer {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            optimizer {
                "training" UpdateParams Own {
                    optimizer_sgd_f32 F32, optimizer_sgd_f16 F16, optimizer_sgd_bf16 Bf16: Direct, SgdStep;
                    optimizer_adam_f32 F32, optimizer_adam_f16 F16, optimizer_adam_bf16 Bf16: Direct, AdamStep;
                }
                "training" CrossEntropyParams Own {
                    cross_entropy_count F32: Direct, CountLabels;
                    cross_entropy_f32 F32, cross_entropy_f16 F16, cross_entropy_bf16 Bf16: Direct, CrossEntropyRows;
                }
                "training" WeightParams Own {
                    weight_gradient_f32 F32, weight_gradient_tf32 Tf32, weight_gradient_f16 F16, weight_gradient_bf16 Bf16: Direct, WeightTile;
                    weight_gradient_sum F32: Direct, WeightSum;
                    bias_gradient_f32 F32, bias_gradient_f16 F16, bias_gradient_bf16 Bf16: Direct, BiasTile;
                }
            }
        }
    };
}
