"""Which baselines there are: by kind of data their names, and what a table calls each.

Apart from evaluation/baselines.py, so that a pair's name can be checked without the seconds that scikit-learn takes.
"""

BASELINES = {"text": ("tf-idf", "nb-svm"), "image": ("linear",)}
BASELINE_TITLES = {
    "tf-idf": "TF-IDF + logistic regression",
    "nb-svm": "NB-SVM on unigrams and bigrams",
    "linear": "logistic regression over pixels",
}
