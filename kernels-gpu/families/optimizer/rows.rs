//! Rows of the kernel table that belong to the family `optimizer`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_optimizer {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            optimizer {
                optimizer "optimizer" UpdateParams Own {
                    optimizer_sgd_f32: Direct, F32, SgdStep;
                    optimizer_sgd_f16: Direct, F16, SgdStep;
                    optimizer_sgd_bf16: Direct, Bf16, SgdStep;
                    optimizer_adam_f32: Direct, F32, AdamStep;
                    optimizer_adam_f16: Direct, F16, AdamStep;
                    optimizer_adam_bf16: Direct, Bf16, AdamStep;
                }
                cross_entropy "cross_entropy" CrossEntropyParams Own {
                    cross_entropy_count: Direct, F32, CountLabels;
                    cross_entropy_f32: Direct, F32, CrossEntropyRows;
                    cross_entropy_f16: Direct, F16, CrossEntropyRows;
                    cross_entropy_bf16: Direct, Bf16, CrossEntropyRows;
                }
                weight_gradient "weight_gradient" WeightParams Own {
                    weight_gradient_f32: Direct, F32, WeightTile;
                    weight_gradient_tf32: Direct, Tf32, WeightTile;
                    weight_gradient_f16: Direct, F16, WeightTile;
                    weight_gradient_bf16: Direct, Bf16, WeightTile;
                    weight_gradient_sum: Direct, F32, WeightSum;
                    bias_gradient_f32: Direct, F32, BiasTile;
                    bias_gradient_f16: Direct, F16, BiasTile;
                    bias_gradient_bf16: Direct, Bf16, BiasTile;
                }
            }
        }
    };
}
