"""A captured graph in the form that everything else expects: ``canonical_form.py`` brings it there,
``gradient_sums.py`` and ``gradient_layout.py`` give gradients the memory that autograd gives them.
"""
