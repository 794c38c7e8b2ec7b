-- The exact confidence interval of a Poisson count (Garwood 1936), for which scipy's
-- chi2.ppf(alpha / 2, 2 n) / 2 and chi2.ppf(1 - alpha / 2, 2 n + 2) / 2 give the same.
-- garwood_low(n, alpha): the mean at which n or more events have the chance alpha / 2; 0 for none.
-- garwood_high(n, alpha): the mean at which n or fewer events have that chance.
-- Found by bisection: 60 halvings of an interval that holds the answer leave no digit of a double.
create macro poisson_at_most(n, mean) as
    list_sum(list_transform(
        range(0, n + 1),
        lambda j: exp(j * ln(mean) - mean - lgamma(j + 1))
    ));

create macro garwood_high(n, alpha) as
    list_reduce(
        list_transform(range(0, 60), lambda i: [0.0::double, 0.0::double]),
        lambda bounds, step:
            case
                when poisson_at_most(n, (bounds[1] + bounds[2]) / 2) > alpha / 2
                    then [(bounds[1] + bounds[2]) / 2, bounds[2]]
                else [bounds[1], (bounds[1] + bounds[2]) / 2]
            end,
        [n::double, n + 10 * sqrt(n + 1) + 20]
    )[2];

create macro garwood_low(n, alpha) as
    case
        when n = 0 then 0.0::double
        else list_reduce(
            list_transform(range(0, 60), lambda i: [0.0::double, 0.0::double]),
            lambda bounds, step:
                case
                    when 1 - poisson_at_most(n - 1, (bounds[1] + bounds[2]) / 2) > alpha / 2
                        then [bounds[1], (bounds[1] + bounds[2]) / 2]
                    else [(bounds[1] + bounds[2]) / 2, bounds[2]]
                end,
            [0.0::double, n::double]
        )[1]
    end;
