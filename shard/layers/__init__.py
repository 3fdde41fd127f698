"""Tensor-parallel layers that models are built of: linears, embedding and head, rotary embedding, mixture of experts.
"""
